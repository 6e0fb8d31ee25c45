"""Statistics, repository index and control in mode none, metrics, and the endpoints of later
extensions."""

from __future__ import annotations

from tests.differential.case import Case, get, infer, post, refused, tensor

STILL = {"inputs": [tensor("ANY", "INT32", [1], [0])]}

CASES: list[Case] = [
    infer("before statistics", "versions_all", STILL, version="1"),
    get(
        "statistics of a version", "/v2/models/versions_all/versions/1/stats", normalise=("counts",)
    ),
    get("statistics of a model", "/v2/models/versions_latest/stats", normalise=("counts",)),
    get(
        "statistics of an untouched model",
        "/v2/models/image/versions/1/stats",
        normalise=("counts",),
    ),
    get("statistics of a decoupled model", "/v2/models/repeat/stats", normalise=("counts",)),
    get("statistics of all models", "/v2/models/stats", normalise=("counts", "any order")),
    get("statistics of an unknown model", "/v2/models/nowhere/stats"),
    get("statistics of an unknown version", "/v2/models/add_sub/versions/9/stats"),
    post("statistics by POST", "/v2/models/add_sub/stats"),
    post("index", "/v2/repository/index", normalise=("any order",)),
    post(
        "index of the ready ones", "/v2/repository/index", {"ready": True}, normalise=("any order",)
    ),
    post(
        "index with ready false", "/v2/repository/index", {"ready": False}, normalise=("any order",)
    ),
    post(
        "index with ready that is a string",
        "/v2/repository/index",
        {"ready": "yes"},
        expect=refused(400, "Invalid value for 'ready': expected a boolean"),
        because="the text of 2.73",
    ),
    post("index with an empty object", "/v2/repository/index", {}, normalise=("any order",)),
    post("index with broken JSON", "/v2/repository/index", b"{", normalise=("parser",)),
    post("index of a named repository", "/v2/repository/mine/index", normalise=("any order",)),
    get("index by GET", "/v2/repository/index"),
    post("load in mode none", "/v2/repository/models/add_sub/load"),
    post("unload in mode none", "/v2/repository/models/add_sub/unload"),
    post("load with a repository", "/v2/repository/mine/models/add_sub/load"),
    post("unload with a repository", "/v2/repository/mine/models/add_sub/unload"),
    post("unknown verb", "/v2/repository/models/add_sub/reload"),
    get("load by GET", "/v2/repository/models/add_sub/load"),
    get("metrics", "/metrics", port="metrics", normalise=("metric names",)),
    get("metrics with a slash", "/metrics/", port="metrics", normalise=("metric names",)),
    get("other path on the metrics port", "/other", port="metrics"),
    post("metrics by POST", "/metrics", port="metrics", normalise=("error type",)),
]
