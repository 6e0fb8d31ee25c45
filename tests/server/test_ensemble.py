"""Ensembles on a real server: the genuine Triton's transcripts; cancellation, large tensors,
labels, shutdown."""

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
def test_as_the_genuine_triton(scheduler_server: tuple[Server, str], name: str) -> None:
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


def test_classification_with_the_ensembles_own_labels(scene: Scene) -> None:
    _, answer = fork(scene, [{"name": "TENFOLD", "parameters": {"classification": 1}}])
    assert answer["outputs"][0]["data"] == ["10:0:zero"]


def test_the_answer_is_in_the_order_of_the_config_or_of_the_request(scene: Scene) -> None:
    assert [output["name"] for output in fork(scene, [])[1]["outputs"]] == ["OUT", "TENFOLD"]
    assert [
        output["name"]
        for output in fork(scene, [{"name": "TENFOLD"}, {"name": "OUT"}])[1]["outputs"]
    ] == ["TENFOLD", "OUT"]


def test_generate_stream_of_a_decoupled_ensemble(scene: Scene) -> None:
    status, body = scene.server.post("/v2/models/ensemble_many/generate_stream", {"IN": 1})
    assert status == 200
    assert [
        json.loads(line.removeprefix("data: "))["OUT"]
        for line in body.decode().split("\n\n")
        if line
    ] == [1, 2]


def test_cancelling_the_request_cancels_the_step(scene: Scene) -> None:
    """The step that waits in its queue is gone, and the next one never runs."""
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
    scene.answer("busy")
    assert [[request["id"] for request in batch] for batch in scene.batches("step_gated")] == [
        ["busy"]
    ]
    assert scene.batches("step_b") == []


def test_an_ensemble_in_flight_finishes_while_the_server_shuts_down(
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
        assert scene.answer("late") == [{"OUT": [3]}]
        scene.close()
        assert server.wait_exit() == 0


# Large tensors, with and without the relay from step to step.

LARGE = 1 << 20


def write_model(folder: Path, name: str, body: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 0\n'
        'input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ] output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
    )
    (folder / name / "1" / "model.py").write_text(
        "import numpy as np\nimport triton_python_backend_utils as pb_utils\n\n\n"
        "class TritonPythonModel:\n    kept = None\n\n    def execute(self, requests):\n        responses = []\n"
        "        for request in requests:\n            x = pb_utils.get_input_tensor_by_name(request, 'X').as_numpy()\n"
        f"            {body}\n"
        "            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('Y', y)]))\n        return responses\n"
    )


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
            f'{{ model_name: "{m}" model_version: -1 input_map {{ key: "X" value: "{i}" }} output_map {{ key: "Y" value: "{o}" }} }}'
            for m, i, o in maps
        )
        outputs = ", ".join(
            f'{{ name: "{o}" data_type: TYPE_INT32 dims: [ -1 ] }}'
            for _, _, o in maps
            if o.startswith("OUT")
        )
        (folder / name / "config.pbtxt").write_text(
            f'platform: "ensemble" input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }} ] output [ {outputs} ]\n'
            f"ensemble_scheduling {{ step [ {text} ] }}\n"
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


def test_a_chain_of_large_tensors(large_server: Server) -> None:
    """Among the steps one that writes to its input and one that returns it: each sees only its
    own."""
    for seed in range(5):
        array = np.random.default_rng(seed).integers(0, 1 << 30, LARGE, np.int32)
        assert np.array_equal(infer(large_server, "chain", array)["OUT"], array + 12)


def test_a_tensor_with_two_readers_is_not_written_to_by_one_of_them(large_server: Server) -> None:
    array = np.arange(LARGE, dtype=np.int32)
    for _ in range(5):
        answer = infer(large_server, "shared", array)
        assert np.array_equal(answer["OUT"], array + 11)
        assert np.array_equal(answer["OUT2"], array + 1)


def test_a_model_that_keeps_its_input_does_not_see_it_change(large_server: Server) -> None:
    for number in range(3):
        array = np.full(LARGE, number, np.int32)
        assert np.array_equal(infer(large_server, "hoarding", array)["OUT"], array + 11)


def test_many_at_once_do_not_mix(large_server: Server) -> None:
    def work(seed: int) -> bool:
        array = np.random.default_rng(seed).integers(0, 1 << 30, LARGE // 4, np.int32)
        return all(
            np.array_equal(infer(large_server, "chain", array)["OUT"], array + 12) for _ in range(6)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))
