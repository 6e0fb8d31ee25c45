"""Health, server and model metadata, model configuration, over HTTP."""

from __future__ import annotations

from tests.differential.case import Case, HttpCase, get, health, post

MODELS = (
    "add_sub", "identity_fp32", "identity_bytes", "types", "image", "reshaped", "classifier",
    "optional_inputs", "versions_latest", "versions_all", "versions_specific", "auto_static",
    "auto_class", "auto_partial", "repeat", "words", "instance_info", "observed",
)  # fmt: skip

CASES: list[Case] = [
    health("live", "live"),
    health("ready", "ready"),
    health("live with a query", "live", "?verbose=1"),
    get("health without a kind", "/v2/health"),
    get("health of an unknown kind", "/v2/health/well"),
    post("live by POST", "/v2/health/live"),
    HttpCase(
        "ready by HEAD",
        "HEAD",
        "/v2/health/ready",
        expect={"status": 200},
        because="Naiad handles HEAD like GET",
    ),
    HttpCase("ready by DELETE", "DELETE", "/v2/health/ready"),
    get("server metadata", "/v2", normalise=("version",)),
    get("server metadata with a slash", "/v2/"),
    post("server metadata by POST", "/v2"),
    get("root", "/"),
    get("unknown path", "/v3"),
    get("path without a version", "/models/add_sub"),
    *(get(f"metadata of {model}", f"/v2/models/{model}") for model in MODELS),
    get("metadata of a version", "/v2/models/versions_all/versions/1"),
    get("metadata of a version outside the policy", "/v2/models/versions_specific/versions/2"),
    get("metadata of an unknown model", "/v2/models/nowhere"),
    get("metadata of an unknown version", "/v2/models/add_sub/versions/9"),
    get("metadata of a version that is no number", "/v2/models/add_sub/versions/one"),
    get("metadata of a huge version", "/v2/models/add_sub/versions/99999999999999999999"),
    get("metadata with a slash", "/v2/models/add_sub/"),
    post("metadata by POST", "/v2/models/add_sub"),
    get("models without a name", "/v2/models"),
    get("models without a name and a slash", "/v2/models/"),
    get("unknown verb of a model", "/v2/models/add_sub/explain"),
    get("model ready", "/v2/models/add_sub/ready"),
    get("version ready", "/v2/models/versions_latest/versions/2/ready"),
    get("version outside the policy ready", "/v2/models/versions_latest/versions/1/ready"),
    get("unknown model ready", "/v2/models/nowhere/ready"),
    get("unknown version ready", "/v2/models/add_sub/versions/7/ready"),
    post("model ready by POST", "/v2/models/add_sub/ready"),
    *(get(f"config of {model}", f"/v2/models/{model}/config") for model in MODELS),
    get("config of a version", "/v2/models/versions_all/versions/3/config"),
    get("config of an unknown model", "/v2/models/nowhere/config"),
    get("config of an unknown version", "/v2/models/add_sub/versions/2/config"),
    post("config by POST", "/v2/models/add_sub/config"),
]
