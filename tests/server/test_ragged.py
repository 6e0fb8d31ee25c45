"""Ragged batches on a real server: an ONNX model executes requests of different sizes together, and
batch_input separates them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests import onnx_file
from tests.onnx_file import Node, Value
from tests.server import framework_repository as models
from tests.server.harness import Server, naiad

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (pip install '.[onnx]')")

CONFIG = """
max_batch_size: 3
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [
  { name: "double" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "count" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } },
  { name: "end" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } },
  { name: "shape" data_type: TYPE_INT32 dims: [ 1 ] }
]
batch_input [
  { kind: BATCH_ELEMENT_COUNT target_name: "counts" data_type: TYPE_INT32 source_input: "x" },
  { kind: BATCH_ACCUMULATED_ELEMENT_COUNT
    target_name: "ends" data_type: TYPE_FP32 source_input: "x" },
  { kind: BATCH_ITEM_SHAPE target_name: "shapes" data_type: TYPE_INT32 source_input: "x" }
]
batch_output [ { kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: "double" source_input: "x" } ]
dynamic_batching { preferred_batch_size: [ 3 ] max_queue_delay_microseconds: 20000000 }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
"""A batch starts only when it has three requests."""


def model() -> bytes:
    nodes = [
        Node("Add", ["x", "x"], ["double"]),
        Node("Identity", ["counts"], ["count"]),
        Node("Identity", ["ends"], ["end"]),
        Node("Identity", ["shapes"], ["shape"]),
    ]
    inputs = [
        Value("x", "FP32", ["n"]),
        Value("counts", "INT32", ["r"]),
        Value("ends", "FP32", ["r"]),
        Value("shapes", "INT32", ["r", 1]),
    ]
    outputs = [
        Value("double", "FP32", ["n"]),
        Value("count", "INT32", ["r"]),
        Value("end", "FP32", ["r"]),
        Value("shape", "INT32", ["r", 1]),
    ]
    return onnx_file.model(nodes, inputs, outputs)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("ragged")
    models.add(repository, "ragged", "model.onnx", model(), CONFIG)
    with naiad([str(repository)]) as running:
        yield running


def tensor(values: list[float]) -> grpc_client.InferInput:
    array = np.array([values], np.float32)
    made = grpc_client.InferInput("x", list(array.shape), "FP32")
    made.set_data_from_numpy(array)
    return made


def test_requests_of_different_sizes_share_a_batch(server: Server) -> None:
    """The requests are sent on one stream, so the server receives them in this order."""
    sent = {"a": [1.0, 2.0, 3.0], "b": [4.0], "c": [5.0, 6.0]}
    responses: dict[str, Any] = {}
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(
            lambda result, error: responses.update(
                {result.get_response().id: result} if error is None else {"error": error}
            )
        )
        for id, values in sent.items():
            client.async_stream_infer("ragged", [tensor(values)], request_id=id)
        client.stop_stream()
    got = {
        id: {
            name: responses[id].as_numpy(name).tolist()
            for name in ("double", "count", "end", "shape")
        }
        for id in sent
    }
    assert got == {
        "a": {"double": [[2, 4, 6]], "count": [[3]], "end": [[3]], "shape": [[3]]},
        "b": {"double": [[8]], "count": [[1]], "end": [[4]], "shape": [[1]]},
        "c": {"double": [[10, 12]], "count": [[2]], "end": [[6]], "shape": [[2]]},
    }
    (statistics,) = json.loads(server.get("/v2/models/ragged/stats")[1])["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (3, 1)
