"""The config of a load request where it may not bring files: it is data, and names no model that
its key may not use. HTTP and gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.attacks.load_configs import MODEL, load_configs
from tests.attacks.target import Target
from tests.server.framework_repository import add, linear
from tests.server.harness import Server, naiad
from tests.server.model_folder import model_code, write_ensemble, write_model
from tests.server.test_keys import KeyCommand, bearer

AUTO = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "ANY", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "WORD", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(0)
        return config
"""
REFUSED = "of a load request may not change"
CLIENTS = [http_client, grpc_client]
ids = {http_client: "http", grpc_client: "grpc"}.get


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyCommand:
    return KeyCommand(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture(scope="module")
def everything(keys: KeyCommand) -> str:
    return keys.create("everything", "--scopes", "model-repository,model-config,inference")


@pytest.fixture(scope="module")
def some(keys: KeyCommand) -> str:
    scopes = "model-repository,model-config,inference"
    return keys.create("some", "--models", "plain,bl*", "--scopes", scopes)


@pytest.fixture(scope="module")
def server(
    keys: KeyCommand,
    everything: str,
    some: str,
    repositories: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "plain")
    write_model(folder, "secret_model")
    (folder / "auto" / "1").mkdir(parents=True)
    code = model_code("auto").replace("    def initialize", f"{AUTO}\n    def initialize", 1)
    (folder / "auto" / "1" / "model.py").write_text(code)
    add(folder, "linear", "model.onnx", linear())
    write_ensemble(folder, "bl_graph", "secret_model")
    (folder / "bls").symlink_to(folder / "plain")
    for name in ("add_sub", MODEL):
        (folder / name).symlink_to(repositories / "main" / name)
    flags = ["--api-key-file", str(keys.path), "--model-control-mode=explicit", "--load-model=*"]
    with naiad([str(folder)], [*flags, "--allow-file-override=false"]) as one:
        yield one


def config_of(client: Any, name: str, key: str) -> dict[str, Any]:
    if isinstance(client, http_client.InferenceServerClient):
        return dict(client.get_model_config(name, headers=bearer(key)))
    return dict(client.get_model_config(name, headers=bearer(key), as_json=True)["config"])


def client_of(server: Server, module: Any) -> Any:
    return module.InferenceServerClient(server.http if module is http_client else server.grpc)


def load(client: Any, name: str, config: dict[str, Any], key: str) -> str:
    """Returns the error; empty if there is none."""
    try:
        client.load_model(name, headers=bearer(key), config=json.dumps(config))
    except InferenceServerException as error:
        return str(error.message())
    return ""


def test_the_matrix_of_configs(server: Server, everything: str) -> None:
    load_configs(Target(server, bearer(everything)))


@pytest.mark.parametrize("module", CLIENTS, ids=ids)
@pytest.mark.parametrize("name", ["plain", "auto", "linear"])
def test_a_config_that_the_server_shows_comes_back_with_another_count(
    server: Server, everything: str, module: Any, name: str
) -> None:
    """Also for models without config.pbtxt."""
    with client_of(server, module) as client:
        config = config_of(client, name, everything)
        for count in (2, 1):
            config["instance_group"][0]["count"] = count
            assert load(client, name, config, everything) == ""
            shown = config_of(client, name, everything)
            assert shown["instance_group"][0]["count"] == count
        config["output"][0]["dims"] = [7]
        error = load(client, name, config, everything)
        refusal = f"{REFUSED} output[0].dims of model '{name}'"
        assert ("the model expects dims [1]" if name == "auto" else refusal) in error
        assert config_of(client, name, everything)["output"] != config["output"]


@pytest.mark.parametrize("module", CLIENTS, ids=ids)
def test_a_config_need_only_name_what_it_changes_of_a_model_that_completes_itself(
    server: Server, everything: str, module: Any
) -> None:
    with client_of(server, module) as client:
        assert load(client, "linear", {"instance_group": [{"count": 1}]}, everything) == ""
        batching = {"max_queue_delay_microseconds": 100}
        assert load(client, "linear", {"dynamic_batching": batching}, everything) == ""
        # Without its inputs, the config on disk is another one.
        error = load(client, "plain", {"backend": "python"}, everything)
        assert error


@pytest.mark.parametrize("module", CLIENTS, ids=ids)
def test_a_model_that_is_not_on_disk_is_refused(
    server: Server, everything: str, module: Any
) -> None:
    with client_of(server, module) as client:
        config = config_of(client, "plain", everything)
        error = load(client, "nowhere", {**config, "name": "nowhere"}, everything)
        assert "failed to load 'nowhere'" in error


@pytest.mark.parametrize("module", CLIENTS, ids=ids)
def test_a_graph_names_only_models_of_its_key(
    server: Server, everything: str, some: str, module: Any
) -> None:
    with client_of(server, module) as client:
        own = config_of(client, "bl_graph", some)
        graph = {**own, "name": "bls"}
        hidden = "Request for unknown model: 'secret_model' is not found"
        assert load(client, "bls", graph, some) == hidden
        nowhere = json.loads(json.dumps(graph).replace("secret_model", "no_model"))
        assert load(client, "bls", nowhere, some) == hidden.replace("secret_model", "no_model")
        # A key for every model may name it, but the graph is still not what is on disk.
        assert REFUSED in load(client, "bls", graph, everything)
        # What the operator has written may come back.
        assert load(client, "bl_graph", own, some) == ""
