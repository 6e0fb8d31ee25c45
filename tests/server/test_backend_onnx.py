"""ONNX models behind a real server: without a config, every type on the wire, batches, sequences
with state, and bad files."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from tests import onnx_file
from tests.server import framework_repository as models
from tests.server.harness import Server, naiad, process_name, process_tree, wait_gone

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install '.[onnx]')")

EXAMPLES = Path(__file__).parents[2] / "examples"
BROKEN = {
    "empty": b"",
    "garbage": b"this is no model",
    "truncated": models.linear()[:-200],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("onnx")
    models.add(repository, "linear", "model.onnx", models.linear())
    models.add(repository, "lookup", "model.onnx", models.lookup(), "max_batch_size: 16")
    models.add(repository, "accumulator", "model.onnx", models.accumulator(), models.ACCUMULATOR)
    models.add(repository, "echo_string", "model.onnx", onnx_file.identity("BYTES", ["N", 2]))
    models.add(repository, "echo_bf16", "model.onnx", onnx_file.identity("BF16", ["N", 4]))
    models.add(repository, "echo_fp16", "model.onnx", onnx_file.identity("FP16", ["N", "k"]))
    models.add(repository, "echo_large", "model.onnx", onnx_file.identity("FP32", ["N", 100_000]))
    models.add(repository, "scalar", "model.onnx", onnx_file.identity("INT64", []))
    wrong = (
        'max_batch_size: 4 input { name: "a" data_type: TYPE_FP32 dims: 64 } output { name: "y" '
        "data_type: TYPE_FP32 dims: 16 }"
    )
    models.add(repository, "wrong_name", "model.onnx", models.linear(), wrong)
    warm = (
        'max_batch_size: 4 model_warmup { name: "%s" batch_size: 2 inputs { key: "x" value { '
        "data_type: TYPE_INT64 dims: 1 %s } } }"
    )
    models.add(
        repository, "warmed", "model.onnx", models.lookup(), warm % ("zeros", "zero_data: true")
    )
    models.add(
        repository,
        "too_warm",
        "model.onnx",
        models.lookup(),
        warm % ("far", 'input_data_file: "far"'),
    )
    (repository / "too_warm/warmup").mkdir()
    (repository / "too_warm/warmup/far").write_bytes(np.int64(99).tobytes())
    for name, content in BROKEN.items():
        models.add(repository, name, "model.onnx", content)
    with naiad([str(repository)], ["--exit-on-error=false", "--strict-readiness=false"]) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Any]:
    module = triton if request.param == "http" else triton_grpc
    with module.InferenceServerClient(
        server.http if request.param == "http" else server.grpc
    ) as opened:
        opened.module = module
        yield opened


def infer(
    client: Any,
    model: str,
    array: np.ndarray[Any, Any],
    datatype: str,
    name: str = "x",
    output: str = "y",
    **more: Any,
) -> Any:
    tensor = client.module.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return client.infer(model, [tensor], **more).as_numpy(output)


def test_a_model_without_a_config(client: Any, server: Server) -> None:
    config = json.loads(server.get("/v2/models/linear/config")[1])
    assert (config["backend"], config["platform"], config["max_batch_size"]) == (
        "onnxruntime",
        "onnxruntime_onnx",
        4,
    )
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    x = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    np.testing.assert_allclose(
        infer(client, "linear", x, "FP32"), x @ models.WEIGHTS, rtol=1e-4, atol=1e-5
    )


def test_strings(client: Any) -> None:
    sent = np.array([["a", "größer"], ["", "日本"]], object)
    assert infer(client, "echo_string", sent, "BYTES").tolist() == [
        [text.encode() for text in row] for row in sent.tolist()
    ]


def test_half_precision(client: Any) -> None:
    sent = np.array([[1.5, -2.25, 65504]], np.float16)
    np.testing.assert_array_equal(infer(client, "echo_fp16", sent, "FP16"), sent)


def test_bf16(client: Any) -> None:
    sent = np.array([[1.5, -2.0, 0.0, 3.0]], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(infer(client, "echo_bf16", sent, "BF16"), sent)


def test_large_tensors(client: Any) -> None:
    sent = np.random.default_rng(1).standard_normal((2, 100_000), np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(infer(client, "echo_large", sent, "FP32"), sent)


def test_a_scalar(client: Any) -> None:
    assert infer(client, "scalar", np.array([7], np.int64), "INT64").tolist() == [7]


def test_concurrent_requests_get_their_own_responses(server: Server) -> None:
    """Batches have up to 16 requests. Every seventh request fails, and does not affect others."""
    responses: dict[int, Any] = {}

    def ask(number: int) -> None:
        with triton.InferenceServerClient(server.http) as client:
            client.module = triton
            try:
                responses[number] = infer(
                    client,
                    "lookup",
                    np.array([[99 if number % 7 == 0 else number % 5]], np.int64),
                    "INT64",
                ).tolist()
            except Exception as error:
                responses[number] = str(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(64):
        if number % 7 == 0:
            assert "indices element out of data bounds" in responses[number]
        else:
            assert responses[number] == [[number % 5 * 10.0]]


def test_a_sequence_keeps_its_state(client: Any) -> None:
    base = 100 if client.module is triton else 200
    totals: dict[int, list[float]] = {1: [], 2: []}
    for step in range(3):
        for sequence in totals:
            value = np.array([[sequence * (step + 1)]], np.float32)
            flags: dict[str, Any] = {
                "sequence_id": base + sequence,
                "sequence_start": step == 0,
                "sequence_end": step == 2,
            }
            totals[sequence].append(
                float(infer(client, "accumulator", value, "FP32", **flags)[0, 0])
            )
    assert totals == {1: [1, 3, 6], 2: [2, 6, 12]}


@pytest.mark.parametrize("name", [*BROKEN, "wrong_name"])
def test_bad_models_fail_with_a_message_and_other_models_serve(server: Server, name: str) -> None:
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert index[name]["state"] == "UNAVAILABLE"
    message = (
        "unexpected inference input 'a', allowed inputs are: x"
        if name == "wrong_name"
        else "onnx runtime error: "
    )
    assert message in index[name]["reason"]
    assert index["linear"]["state"] == "READY"
    assert server.get(f"/v2/models/{name}/ready")[0] == 400


def test_warm_up_happens_before_a_model_is_ready_and_may_fail_it(server: Server) -> None:
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert index["warmed"]["state"] == "READY"
    assert (
        json.loads(server.get("/v2/models/warmed/stats")[1])["model_stats"][0]["execution_count"]
        > 0
    )
    assert "failed to run warmup sample 'far': onnx runtime error: " in index["too_warm"]["reason"]


def test_the_server_does_not_grow_with_its_models(tmp_path: Path) -> None:
    """The worker holds the 60 MB of weights, and frees them with the model."""
    models.add(
        tmp_path,
        "heavy",
        "model.onnx",
        models.heavy(15_000_000),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
    )
    models.add(tmp_path, "linear", "model.onnx", models.linear())
    with naiad([str(tmp_path)], ["--model-control-mode=explicit"]) as server:
        assert server.post("/v2/repository/models/linear/load", {})[0] == 200
        before = _resident_mb(server.pid)
        assert server.post("/v2/repository/models/heavy/load", {})[0] == 200
        assert _resident_mb(server.pid) - before < 10
        (worker,) = [pid for pid in process_tree(server.pid) if process_name(pid) == "heavy_0_0"]
        assert _resident_mb(worker) > 100
        body = {"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [14_999_999]}]}
        assert json.loads(server.post("/v2/models/heavy/infer", body)[1])["outputs"][0]["data"] == [
            1.0
        ]
        assert server.post("/v2/repository/models/heavy/unload", {})[0] == 200
        assert wait_gone([worker]) == []


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# The examples.


@pytest.fixture(scope="module")
def examples_server() -> Iterator[Server]:
    with naiad([str(EXAMPLES / "repository")]) as running:
        yield running


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the test digits, enlarged as for training."""
    sys.path.append(str(EXAMPLES / "repository/digit_image/1"))
    try:
        resize = importlib.import_module("resize").resize
    finally:
        sys.path.pop()
    with np.load(EXAMPLES / "digits/test_digits.npz") as file:
        images = np.stack([resize(image, 32, 32) for image in file["images"]])[:, None] / 16
        return images.astype(np.float32), file["labels"]


def test_accuracy_on_digits_equals_the_offline_accuracy(
    examples_server: Server, digits: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
) -> None:
    import onnxruntime

    images, labels = digits
    offline = onnxruntime.InferenceSession(str(EXAMPLES / "repository/digits/1/model.onnx")).run(
        None, {"image": images}
    )[0]
    with triton.InferenceServerClient(examples_server.http) as client:
        client.module = triton
        parts = [
            infer(client, "digits", images[at : at + 32], "FP32", "image", "scores")
            for at in range(0, len(images), 32)
        ]
    served = np.concatenate(parts)
    np.testing.assert_allclose(served, offline, rtol=1e-4, atol=1e-4)
    accuracy = json.loads((EXAMPLES / "digits/accuracy.json").read_text())
    assert {"correct": int((served.argmax(axis=1) == labels).sum()), "of": len(labels)} == accuracy


def test_the_request_of_the_readme(examples_server: Server) -> None:
    status, body = examples_server.post(
        "/v2/models/digits/infer", (EXAMPLES / "digits/seven.json").read_bytes()
    )
    assert status == 200
    (label,) = json.loads(body)["outputs"][0]["data"]
    assert label.endswith(":7:seven")


def test_a_picture_through_the_ensemble(examples_server: Server) -> None:
    image = np.array([[(EXAMPLES / "digits/seven.png").read_bytes()]], object)
    with triton.InferenceServerClient(examples_server.http) as client:
        tensor = triton.InferInput("IMAGE", [1, 1], "BYTES")
        tensor.set_data_from_numpy(image)
        output = triton.InferRequestedOutput("SCORES", class_count=2)
        (first, _) = client.infer("digit_reader", [tensor], outputs=[output]).as_numpy("SCORES")[0]
        assert first.decode().endswith(":7:seven")
        tensor.set_data_from_numpy(np.array([[b"no picture"]], object))
        with pytest.raises(Exception, match="not a PNG image"):
            client.infer("digit_reader", [tensor])
