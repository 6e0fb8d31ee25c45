"""A core that computes in place, for tests of the gRPC endpoint: no scheduler, no workers, answers
on the event loop.

Models: `add_sub` (2 x FP32[16], batching), `identity` (any datatype), `classes` (FP32[4] with
        labels), `repeat` (decoupled: IN INT32[n] -> n responses, then a final flag), `held` and
        `tap` (plain and decoupled; answer when the test says so), `faulty` (answers with an error),
        `double` (two responses).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import internal, invalid_arg, not_found, unavailable
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.shm.region_inference import infer_with_regions
from naiad.shm.region_table import RegionTable
from naiad.trace.tracing import Tracing


def _spec(
    name: str,
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    *,
    batch: int = 0,
    is_decoupled: bool = False,
) -> ModelSpec:
    return ModelSpec(
        name,
        1,
        [1],
        "python",
        batch,
        {t.name: t for t in inputs},
        {t.name: t for t in outputs},
        is_decoupled,
    )


def _tensor(
    name: str,
    datatype: str,
    dims: list[int],
    *,
    is_batched: bool = False,
    labels: list[str] | None = None,
) -> TensorSpec:
    return TensorSpec(
        name, datatype, dims, [-1, *dims] if is_batched else dims, labels=labels or []
    )


SPECS = [
    _spec(
        "add_sub",
        [
            _tensor("INPUT0", "FP32", [16], is_batched=True),
            _tensor("INPUT1", "FP32", [16], is_batched=True),
        ],
        [
            _tensor("OUTPUT0", "FP32", [16], is_batched=True),
            _tensor("OUTPUT1", "FP32", [16], is_batched=True),
        ],
        batch=64,
    ),
    _spec("identity", [_tensor("INPUT0", "FP32", [-1])], [_tensor("OUTPUT0", "FP32", [-1])]),
    _spec(
        "classes",
        [_tensor("INPUT0", "FP32", [4])],
        [_tensor("OUTPUT0", "FP32", [4], labels=["ant", "bee", "cat", "dog"])],
    ),
    _spec(
        "repeat", [_tensor("IN", "INT32", [1])], [_tensor("OUT", "INT32", [1])], is_decoupled=True
    ),
    _spec("held", [_tensor("INPUT0", "FP32", [-1])], [_tensor("OUTPUT0", "FP32", [-1])]),
    _spec(
        "tap",
        [_tensor("INPUT0", "FP32", [-1])],
        [_tensor("OUTPUT0", "FP32", [-1])],
        is_decoupled=True,
    ),
    _spec("faulty", [_tensor("INPUT0", "FP32", [-1])], [_tensor("OUTPUT0", "FP32", [-1])]),
    _spec("double", [_tensor("INPUT0", "FP32", [-1])], [_tensor("OUTPUT0", "FP32", [-1])]),
]


LOOKS_AT_DATA = ("classes",)
"""As models with strings for their inputs do: no request is accepted beforehand."""


class FakeModel:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.config = ModelConfig(
            name=spec.name, max_batch_size=spec.max_batch_size, backend="python"
        )
        self.config.model_transaction_policy.decoupled = spec.is_decoupled


class Held:
    """A request that waits for the test."""

    def __init__(self, request: InferRequest, stream: ResponseStream) -> None:
        self.request = request
        self.stream = stream
        self.is_cancelled = False
        self.is_paused = False
        stream.on_cancel(self._cancel)
        stream.on_flow(self._set_paused)

    def _cancel(self) -> None:
        self.is_cancelled = True
        self.stream.close()

    def _set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused

    def answer(self, data: bytes = b"\0\0\0\0", *, is_final: bool = True) -> None:
        self.stream.put(
            _response(self.request, [Tensor("OUTPUT0", "FP32", [len(data) // 4], data)]), is_final
        )


class FakeCore:
    def __init__(self) -> None:
        self.metadata = ServerMetadata(
            "triton", "2.73.0", ["classification", "sequence", "statistics"]
        )
        self.regions = RegionTable()
        self.tracing = Tracing()
        self.models = {spec.name: FakeModel(spec) for spec in SPECS}
        self.ready = True
        self.held: list[Held] = []
        self.requests: list[InferRequest] = []
        self.loaded: list[tuple[str, dict[str, str | bytes]]] = []
        self.buffers: list[memoryview] = []
        self.counted = {name: ModelStatistics(name, 1) for name in self.models}
        self.keeps_requests = True
        self.num_again = 0
        """Requests that needed no check."""

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return self.ready

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None:
        answer(self.is_model_ready(name, version))

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return name in self.models

    def model(self, name: str, version: str = "") -> FakeModel:
        if name not in self.models:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if version not in ("", "1"):
            raise not_found(f"Request for unknown model: '{name}' version {version} is not found")
        return self.models[name]

    def model_metadata(self, name: str, version: str = "") -> ModelSpec:
        return self.model(name, version).spec

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        return self.model(name, version).config

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        if name and name not in self.models:
            raise invalid_arg(f"requested model '{name}' is not available")
        return [self.counted[name]] if name else list(self.counted.values())

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]:
        rows = [ModelIndex(name, "1", "READY") for name in self.models]
        return rows if ready_only else [*rows, ModelIndex("sleeping")]

    async def load_model(self, name: str, parameters: dict[str, str | bytes]) -> None:
        if name == "broken":
            raise internal("failed to load 'broken', no version is available")
        self.loaded.append((name, parameters))

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        self.loaded.append((name, {"unload_dependents": str(unload_dependents)}))

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        if model_name != "identity":
            return None
        buffer = np.empty(num_bytes, np.uint8).data
        if self.keeps_requests:
            self.buffers.append(buffer)
        return buffer

    def infer(self, request: InferRequest, model: object = None) -> ResponseStream:
        if request.regions is not None:
            return infer_with_regions(
                request, self.regions, self.infer, partial(self.input_buffer, request.model_name)
            )
        self.model(request.model_name, request.model_version)
        if request.form is not None:
            request.form.accepted_by = None if request.model_name in LOOKS_AT_DATA else self
        # as RequestCheck has it: else it is not touched
        if self.models[request.model_name].spec.max_batch_size:
            request.batch_size = self._batch_size(request)
        return self._start(request)

    def infer_again(self, request: InferRequest, model: FakeModel) -> ResponseStream:
        assert model is self.models[request.model_name]
        assert request.model_name not in LOOKS_AT_DATA
        assert request.batch_size == self._batch_size(request)
        self.num_again += 1
        return self._start(request)

    def _batch_size(self, request: InferRequest) -> int:
        return (
            request.inputs[0].shape[0] if self.models[request.model_name].spec.max_batch_size else 1
        )

    def _start(self, request: InferRequest) -> ResponseStream:
        if self.keeps_requests:
            self.requests.append(request)
        counted = self.counted[request.model_name]
        counted.inference_count += 1
        counted.execution_count += 1
        for duration in (
            counted.success,
            counted.queue,
            counted.compute_input,
            counted.compute_infer,
            counted.compute_output,
        ):
            duration.add(1000)
        stream = request.stream = ResponseStream()
        getattr(self, f"_{request.model_name}")(request, stream)
        return stream

    def _add_sub(self, request: InferRequest, stream: ResponseStream) -> None:
        a = np.frombuffer(request.inputs[0].data, np.float32)
        b = np.frombuffer(request.inputs[1].data, np.float32)
        shape = request.inputs[0].shape
        outputs = [
            Tensor("OUTPUT0", "FP32", shape, (a + b).tobytes()),
            Tensor("OUTPUT1", "FP32", shape, (a - b).tobytes()),
        ]
        stream.put(_response(request, outputs), True)

    def _identity(self, request: InferRequest, stream: ResponseStream) -> None:
        if request.parameters.get("refuse"):
            raise unavailable("Exceeds maximum queue size")
        data = request.inputs[0]
        stream.put(
            _response(request, [Tensor("OUTPUT0", data.datatype, data.shape, data.data)]), True
        )

    def _classes(self, request: InferRequest, stream: ResponseStream) -> None:
        self._identity(request, stream)

    def _repeat(self, request: InferRequest, stream: ResponseStream) -> None:
        (count,) = np.frombuffer(request.inputs[0].data, np.int32)
        for i in range(count):
            stream.put(
                _response(request, [tensor_from_numpy("OUT", np.array([i], np.int32))]), False
            )
        stream.close()

    def _held(self, request: InferRequest, stream: ResponseStream) -> None:
        self.held.append(Held(request, stream))

    def _tap(self, request: InferRequest, stream: ResponseStream) -> None:
        self.held.append(Held(request, stream))

    def _faulty(self, request: InferRequest, stream: ResponseStream) -> None:
        stream.fail(invalid_arg("the model does not like it"), "faulty", "1", request.id)

    def _double(self, request: InferRequest, stream: ResponseStream) -> None:
        stream.put(_response(request, []), False)
        stream.put(_response(request, []), True)


def _response(request: InferRequest, outputs: list[Tensor], **parameters: Any) -> InferResponse:
    return InferResponse(request.model_name, "1", request.id, outputs, parameters)
