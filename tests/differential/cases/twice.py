"""Two repositories with a model of the same name, without and with namespaces."""

from __future__ import annotations

from tests.differential.case import Case, get, health, infer, post
from tests.differential.cases.model_control import ANY

MODELS = ("twice", "only_one", "only_two", "ensemble_one", "ensemble_two", "far")
CASES: list[Case] = [
    post("index", "/v2/repository/index"),
    post("index of ready ones", "/v2/repository/index", {"ready": True}),
    *(infer(f"infer: {model}", model, ANY) for model in MODELS),
    *(get(f"metadata: {model}", f"/v2/models/{model}") for model in MODELS),
    *(get(f"readiness: {model}", f"/v2/models/{model}/ready") for model in MODELS),
    get("config", "/v2/models/twice/config"),
    post("load", "/v2/repository/models/twice/load"),
    post("unload", "/v2/repository/models/twice/unload"),
    health("server readiness", "ready"),
]
