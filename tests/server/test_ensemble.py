"""Ensembles on a real server: the genuine Triton's transcripts, cancellation, large tensors,
labels, and shutdown."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from tests.scenarios.run import play
from tests.scenarios.scene import LIMIT_S, Scene
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server, naiad

SUITE = SUITES["ensemble"]
GOLDEN = read_golden("ensemble")


@pytest.mark.parametrize("name", list(SUITE.scenarios))
def test_behaves_like_the_genuine_triton(scheduler_server: tuple[Server, str], name: str) -> None:
    assert play(*scheduler_server, SUITE, name) == GOLDEN[name]


def fork(
    scene: Scene, outputs: list[dict[str, Any]], **parameters: Any
) -> tuple[int, dict[str, Any]]:
    inputs = [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}]
    status, body = scene.server.post(
        "/v2/models/ensemble_fork/infer",
        {"inputs": inputs, "outputs": outputs, "parameters": parameters},
    )
    return status, json.loads(body)


def test_classification_uses_the_labels_of_the_ensemble(scene: Scene) -> None:
    _, response = fork(scene, [{"name": "TENFOLD", "parameters": {"classification": 1}}])
    assert response["outputs"][0]["data"] == ["10:0:zero"]


def test_outputs_are_in_the_order_of_the_config_or_of_the_request(scene: Scene) -> None:
    def names(outputs: list[dict[str, Any]]) -> list[str]:
        return [output["name"] for output in fork(scene, outputs)[1]["outputs"]]

    assert names([]) == ["OUT", "TENFOLD"]
    assert names([{"name": "TENFOLD"}, {"name": "OUT"}]) == ["TENFOLD", "OUT"]


def test_generate_stream_works_with_a_decoupled_ensemble(scene: Scene) -> None:
    status, body = scene.server.post("/v2/models/ensemble_many/generate_stream", {"IN": 1})
    assert status == 200
    assert [
        json.loads(line.removeprefix("data: "))["OUT"]
        for line in body.decode().split("\n\n")
        if line
    ] == [1, 2]


def test_cancelling_the_request_cancels_the_step(scene: Scene) -> None:
    """The step that waits in its queue is removed, and the next step never runs."""
    gate = scene.gate()
    scene.send("busy", "step_gated", x=1, go=gate)
    gate.wait_entered()
    inputs = [
        grpc_client.InferInput("IN", [1, 1], "INT32"),
        grpc_client.InferInput("GO", [1, 1], "BYTES"),
    ]
    inputs[0].set_data_from_numpy(np.zeros([1, 1], np.int32))
    inputs[1].set_data_from_numpy(np.array([[b""]], np.object_))
    with grpc_client.InferenceServerClient(scene.server.grpc) as client:
        doomed = client.async_infer(
            "ensemble_gated", inputs, lambda result, error: None, request_id="doomed"
        )
        scene.wait_pending("step_gated", 1)
        doomed.cancel()
        scene.wait_pending("step_gated", 0)
    gate.open()
    scene.response("busy")
    assert [[request["id"] for request in batch] for batch in scene.batches("step_gated")] == [
        ["busy"]
    ]
    assert scene.batches("step_b") == []


def test_a_running_ensemble_finishes_before_the_server_stops(
    repositories: Path, tmp_path: Path
) -> None:
    flags = ["--model-control-mode=explicit", "--load-model=ensemble_gated"]
    with naiad([str(repositories / "schedulers")], flags, {"RECORD_DIR": str(tmp_path)}) as server:
        scene = Scene(server, str(tmp_path))
        gate = scene.gate()
        scene.send("late", "ensemble_gated", x=1, input_name="IN", go=gate)
        gate.wait_entered()
        server.signal(signal.SIGTERM)
        server.wait_for_line("Waiting for in-flight requests to complete", LIMIT_S)
        gate.open()
        assert scene.response("late") == [{"OUT": [3]}]
        scene.close()
        assert server.wait_exit() == 0


LARGE = 1 << 20
"""Elements of a tensor that is passed between workers in shared memory."""
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    kept = None

    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, 'X').as_numpy()
            {body}
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('Y', y)]))
        return responses
"""
CONFIG = """
backend: "python" max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


def write_model(folder: Path, name: str, body: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(CONFIG)
    (folder / name / "1" / "model.py").write_text(MODEL.format(body=body))


@pytest.fixture(scope="module", params=["true", "false"], ids=["relay", "no_relay"])
def large_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("large")
    write_model(folder, "add_one", "y = x + 1")
    write_model(folder, "in_place", "x += 10; y = x")
    write_model(folder, "same", "y = x")
    write_model(folder, "hoards", "y = x; self.kept = (self.kept or []) + [x]")
    ensembles = {
        "chain": ["add_one:IN:a", "in_place:a:b", "same:b:c", "add_one:c:OUT"],
        "shared": ["add_one:IN:a", "in_place:a:b", "same:a:OUT2", "same:b:OUT"],
        "hoarding": ["add_one:IN:a", "hoards:a:b", "in_place:b:OUT"],
    }
    for name, steps in ensembles.items():
        (folder / name / "1").mkdir(parents=True)
        maps = [step.split(":") for step in steps]
        text = ", ".join(
            f'{{ model_name: "{m}" model_version: -1 input_map {{ key: "X" value: "{i}" }} '
            f'output_map {{ key: "Y" value: "{o}" }} }}'
            for m, i, o in maps
        )
        outputs = ", ".join(
            f'{{ name: "{o}" data_type: TYPE_INT32 dims: [ -1 ] }}'
            for _, _, o in maps
            if o.startswith("OUT")
        )
        (folder / name / "config.pbtxt").write_text(
            'platform: "ensemble"\n'
            'input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
            f"output [ {outputs} ]\nensemble_scheduling {{ step [ {text} ] }}\n"
        )
    with naiad([str(folder)], [f"--ensemble-relay={request.param}"]) as server:
        yield server


def infer(
    server: Server, model: str, array: np.ndarray[Any, Any]
) -> dict[str, np.ndarray[Any, Any]]:
    with http_client.InferenceServerClient(server.http) as client:
        tensor = http_client.InferInput("IN", list(array.shape), "INT32")
        tensor.set_data_from_numpy(array)
        result = client.infer(model, [tensor])
        return {
            output["name"]: result.as_numpy(output["name"])
            for output in result.get_response()["outputs"]
        }


def test_passes_large_tensors_from_step_to_step(large_server: Server) -> None:
    """One step writes to its input and one returns its input. Each step must see only its own
    changes."""
    for seed in range(5):
        array = np.random.default_rng(seed).integers(0, 1 << 30, LARGE, np.int32)
        assert np.array_equal(infer(large_server, "chain", array)["OUT"], array + 12)


def test_a_step_cannot_change_a_tensor_that_another_step_reads(large_server: Server) -> None:
    array = np.arange(LARGE, dtype=np.int32)
    for _ in range(5):
        response = infer(large_server, "shared", array)
        assert np.array_equal(response["OUT"], array + 11)
        assert np.array_equal(response["OUT2"], array + 1)


def test_an_input_that_a_model_keeps_does_not_change(large_server: Server) -> None:
    for number in range(3):
        array = np.full(LARGE, number, np.int32)
        assert np.array_equal(infer(large_server, "hoarding", array)["OUT"], array + 11)


def test_concurrent_requests_do_not_mix_their_tensors(large_server: Server) -> None:
    def work(seed: int) -> bool:
        array = np.random.default_rng(seed).integers(0, 1 << 30, LARGE // 4, np.int32)
        return all(
            np.array_equal(infer(large_server, "chain", array)["OUT"], array + 12) for _ in range(6)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
