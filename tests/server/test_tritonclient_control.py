"""Stock tritonclient in explicit mode, over both protocols: load, unload, config and file
overrides, and index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.server.client_data import number_input
from tests.server.harness import Endpoints


@pytest.fixture(params=["http", "grpc"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = http_client if request.param == "http" else grpc_client
    return chosen


@pytest.fixture
def client(module: ModuleType, control_server: Endpoints) -> Iterator[Any]:
    one = module.InferenceServerClient(
        control_server.http if module is http_client else control_server.grpc
    )
    yield one
    one.close()


def word(client: Any, module: ModuleType, model: str, version: str = "") -> str:
    result = client.infer(model, [number_input(module, "ANY", 0)], model_version=version)
    return bytes(result.as_numpy("WORD")[0]).decode()


def test_load_and_unload(module: ModuleType, client: Any) -> None:
    assert not client.is_model_ready("plain")
    client.load_model("plain")
    assert client.is_model_ready("plain")
    assert word(client, module, "plain") == "plain"
    client.unload_model("plain")
    assert not client.is_model_ready("plain")
    with pytest.raises(InferenceServerException, match="unknown model: 'plain'"):
        word(client, module, "plain")


def test_loads_all_versions(module: ModuleType, client: Any) -> None:
    client.load_model("two_versions")
    assert [word(client, module, "two_versions", version) for version in ("1", "2", "")] == [
        "first",
        "second",
        "second",
    ]
    client.unload_model("two_versions")


def test_a_config_override_lasts_until_the_next_load(module: ModuleType, client: Any) -> None:
    config = {
        "backend": "python",
        "input": [{"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]}],
        "output": [{"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]}],
        "parameters": {"greeting": {"string_value": "good evening"}},
    }
    client.load_model("with_parameter", config=json.dumps(config))
    assert word(client, module, "with_parameter") == "good evening"
    client.load_model("with_parameter")
    assert word(client, module, "with_parameter") == "hello"
    client.unload_model("with_parameter")


def test_the_error_of_a_load_gives_the_reason(client: Any) -> None:
    with pytest.raises(
        InferenceServerException, match=r"(?s)load failed for model 'raises'.*no weights here"
    ):
        client.load_model("raises")
    with pytest.raises(
        InferenceServerException,
        match="failed to load 'nowhere', failed to poll from model repository",
    ):
        client.load_model("nowhere")
    assert not client.is_model_ready("raises")


def test_the_index_shows_the_state(module: ModuleType, client: Any) -> None:
    def state() -> str:
        response = client.get_model_repository_index(
            **({"as_json": True} if module is grpc_client else {})
        )
        models = response["models"] if isinstance(response, dict) else response
        return str(
            next(model.get("state", "") for model in models if model["name"] == "never_loaded")
        )

    client.load_model("never_loaded")
    assert state() == "READY"
    client.unload_model("never_loaded")
    assert state() in ("UNLOADING", "UNAVAILABLE")


def test_unloading_an_unknown_model_succeeds(client: Any) -> None:
    client.unload_model("nowhere")
