"""Models that see who asked, behind BLS calls and ensembles, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as client

from tests.server.harness import Server, naiad
from tests.server.test_keys import KeyCommand, bearer

CALLER = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            call = pb_utils.InferenceRequest(
                model_name="request_info",
                requested_output_names=["FACTS", "COUNT"],
                inputs=[pb_utils.get_input_tensor_by_name(request, "ANY")],
                parameters={"api_key_id": "forged", "api_key_role": "admin", "mine": 1},
            )
            response = call.exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            responses.append(pb_utils.InferenceResponse(response.output_tensors()))
        return responses
"""
TENSORS = """
max_batch_size: 0
input [ { name: "ANY" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [
  { name: "FACTS" data_type: TYPE_STRING dims: [ 7 ] },
  { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
]
"""
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling { step [ {
  model_name: "request_info" model_version: -1
  input_map { key: "ANY" value: "ANY" }
  output_map { key: "FACTS" value: "FACTS" }
  output_map { key: "COUNT" value: "COUNT" }
} ] }
"""
SHOWN = 'parameters { key: "show_api_key" value { string_value: "true" } }'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyCommand:
    return KeyCommand(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture(scope="module")
def key(keys: KeyCommand) -> str:
    return keys.create("team", "--models", "caller,whole", "--metadata", "team=red")


@pytest.fixture(scope="module")
def server(
    keys: KeyCommand, key: str, repositories: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("repository")
    for name in ("request_info", "caller", "whole"):
        (folder / name / "1").mkdir(parents=True)
    source = repositories / "main" / "request_info" / "1" / "model.py"
    (folder / "request_info" / "1" / "model.py").write_text(source.read_text())
    python = 'backend: "python"'
    (folder / "request_info" / "config.pbtxt").write_text(python + TENSORS + SHOWN)
    (folder / "caller" / "1" / "model.py").write_text(CALLER)
    (folder / "caller" / "config.pbtxt").write_text(python + TENSORS)
    (folder / "whole" / "config.pbtxt").write_text(TENSORS + ENSEMBLE)
    with naiad([str(folder)], ["--api-key-file", str(keys.path)]) as one:
        yield one


@pytest.mark.parametrize("model", ["caller", "whole"])
def test_a_model_behind_another_sees_the_key(server: Server, key: str, model: str) -> None:
    """The key may not use request_info itself. Many calls follow each other, so that they would go
    from worker to worker if this were allowed."""
    tensor = client.InferInput("ANY", [2], "INT32")
    tensor.set_data_from_numpy(np.array([1, 2], np.int32))
    with client.InferenceServerClient(server.http) as connection:
        for _ in range(40):
            result = connection.infer(
                model,
                [tensor],
                headers=bearer(key),
                parameters={"api_key_id": "forged", "api_key_role": "admin"},
            )
            facts = [fact.decode() for fact in result.as_numpy("FACTS")]
            parameters = facts[1].removeprefix("parameters=")
            shown = f'"api_key_id": "{key[9:17]}", "api_key_team": "red"'
            mine = ', "mine": 1' if model == "caller" else ""
            assert parameters == f"{{{shown}{mine}}}"
        with pytest.raises(Exception, match="unknown model: 'request_info'"):
            connection.infer("request_info", [tensor], headers=bearer(key))
