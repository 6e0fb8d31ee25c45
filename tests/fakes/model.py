"""Models without workers: each computes its response in place, on the event loop, unless the test
holds it.

A FakeModel is a Model in every respect but its scheduler. Requests are checked by the real
RequestCheck, so that errors carry the real texts; `identity`, `held`, `held_stream` and `tap` take
whatever they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from naiad.core.datatype import DATATYPES
from naiad.core.job import Job
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import Code, NaiadError, invalid_arg, unavailable
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model
from naiad.repository.request_check import RequestCheck
from naiad.shm.arena import Arena

Compute: TypeAlias = Callable[[InferRequest, ResponseStream, ModelSpec], None]

LABELS = ["cat", "dog", "bird", "fish"]
STEP_NS = 1000
"""How long every step of every execution takes, in the statistics."""


class FakeModel(Model):
    def __init__(self, spec: ModelSpec, compute: Compute | None = None) -> None:
        """The models of this file know how to compute."""
        config = ModelConfig(name=spec.name, max_batch_size=spec.max_batch_size, backend="python")
        config.model_transaction_policy.decoupled = spec.is_decoupled
        statistics = ModelStatistics(spec.name, spec.version)
        super().__init__(spec, config, statistics, [], InPlaceScheduler(self), Arena())
        self.compute = compute or _COMPUTE.get(spec.name, _refuse)
        self.check = _CHECKS.get(spec.name, RequestCheck)(spec).check


class InPlaceScheduler:
    """Computes each request before `enqueue` returns."""

    resizable = None
    sequences = None

    def __init__(self, model: FakeModel) -> None:
        self._model = model

    def enqueue(self, job: Job) -> ResponseStream:
        self._model.compute(job.request, job.stream, self._model.spec)
        statistics = self._model.statistics
        statistics.inference_count += job.batch_size
        statistics.execution_count += 1
        for duration in (
            statistics.success,
            statistics.queue,
            statistics.compute_input,
            statistics.compute_infer,
            statistics.compute_output,
        ):
            duration.add(STEP_NS)
        return job.stream

    def inflight(self) -> int:
        return 0

    async def stop(self) -> None:
        pass


class AnyInputs(RequestCheck):
    """Takes inputs of any name, datatype and shape."""

    def _check(self, request: InferRequest) -> None:
        if self._is_batched:
            request.batch_size = request.inputs[0].shape[0]


class EveryRequest(RequestCheck):
    """Looks at the data of every request, as the check of a model with strings does: no request is
    accepted because an earlier one was."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._needs_each = True


def respond(
    request: InferRequest,
    stream: ResponseStream,
    outputs: list[Tensor],
    *,
    is_final: bool = True,
    **fields: Any,
) -> None:
    """One response of the model. `fields` are those of InferResponse."""
    stream.put(InferResponse(request.model_name, "1", request.id, outputs, **fields), is_final)


# How a model is described.


def tensor_spec(
    name: str,
    datatype: str,
    dims: list[int],
    max_batch_size: int = 0,
    *,
    is_optional: bool = False,
    labels: list[str] | None = None,
) -> TensorSpec:
    shape = [-1, *dims] if max_batch_size else dims
    return TensorSpec(name, datatype, dims, shape, is_optional, labels=labels or [])


def model_spec(
    name: str,
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    *,
    max_batch_size: int = 0,
    is_decoupled: bool = False,
) -> ModelSpec:
    return ModelSpec(
        name,
        1,
        [1],
        "python",
        max_batch_size,
        {tensor.name: tensor for tensor in inputs},
        {tensor.name: tensor for tensor in outputs},
        is_decoupled,
    )


def _one_tensor(
    name: str, datatype: str = "FP32", dims: list[int] | None = None, **fields: Any
) -> ModelSpec:
    """A model with one input IN and one output OUT of the same kind."""
    dims = [-1] if dims is None else dims
    max_batch_size, labels = fields.get("max_batch_size", 0), fields.pop("labels", None)
    return model_spec(
        name,
        [tensor_spec("IN", datatype, dims, max_batch_size)],
        [tensor_spec("OUT", datatype, dims, max_batch_size, labels=labels)],
        **fields,
    )


# What the models do.


def add_sub(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    left, right = request.inputs
    a, b = np.frombuffer(left.data, np.float32), np.frombuffer(right.data, np.float32)
    outputs = [
        Tensor("OUTPUT0", "FP32", left.shape, (a + b).tobytes()),
        Tensor("OUTPUT1", "FP32", left.shape, (a - b).tobytes()),
    ]
    respond(request, stream, outputs)


def identity(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """Refuses a request whose parameter `refuse` is true, as a full queue does."""
    if request.parameters.get("refuse"):
        raise unavailable("Exceeds maximum queue size")
    respond(
        request,
        stream,
        [
            Tensor(tensor.name.replace("IN", "OUT"), tensor.datatype, tensor.shape, tensor.data)
            for tensor in request.inputs
        ],
    )


def describe(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """Responds with one string: the Python literal of what reached the model."""
    inputs = {tensor.name: [tensor.shape, tensor.as_numpy().tolist()] for tensor in request.inputs}
    text = repr(
        (
            inputs,
            request.parameters,
            request.id,
            request.sequence_id,
            request.sequence_start,
            request.sequence_end,
            request.priority,
            request.timeout_us,
        )
    )
    respond(request, stream, [tensor_from_numpy("OUT", np.array([text.encode()], object))])


def respond_to_each(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """Sends a response per value; a negative one is an error response."""
    for value in request.inputs[0].as_numpy().ravel().tolist():
        if value < 0:
            error = NaiadError(Code.UNAVAILABLE, f"neg {value}", retry_after_s=2)
            respond(request, stream, [], is_final=False, error=error)
        else:
            out = tensor_from_numpy("OUT", np.array([value], np.int32))
            text = tensor_from_numpy("TXT", np.array([b"x"] * value, object))
            respond(request, stream, [out, text], is_final=False)
    stream.close()


def count_up(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """Sends as many responses as the input says: 0, 1, 2 ..."""
    (count,) = np.frombuffer(request.inputs[0].data, np.int32)
    for number in range(count):
        output = tensor_from_numpy("OUT", np.array([number], np.int32))
        respond(request, stream, [output], is_final=False)
    stream.close()


def fail(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """Fails with the error code whose number is the input."""
    code = list(Code)[int(request.inputs[0].as_numpy()[0])]
    stream.fail(
        NaiadError(code, f"code {code.name}", retry_after_s=7 if code is Code.UNAVAILABLE else None)
    )


def complain(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    stream.fail(invalid_arg("the model does not like it"), spec.name, "1", request.id)


def respond_twice(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    respond(request, stream, [], is_final=False)
    respond(request, stream, [])


def respond_with_parameters(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    outputs = [Tensor("OUT", "FP32", [2], request.inputs[0].data)]
    respond(request, stream, outputs, parameters={"a": 1, "b": True, "c": "x", "d": 0.5})


def respond_with_nothing(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    respond(request, stream, [])


def _refuse(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    raise AssertionError(f"model '{spec.name}' does not know how to compute")


HELD_SPECS = [
    _one_tensor("held"),
    _one_tensor("held_stream", is_decoupled=True),
    _one_tensor("tap", is_decoupled=True),
]
"""Models whose requests wait for the test (FakeCore.held)."""

_MODELS: list[tuple[ModelSpec, Compute]] = [
    (
        model_spec(
            "add_sub",
            [tensor_spec(name, "FP32", [16], 64) for name in ("INPUT0", "INPUT1")],
            [tensor_spec(name, "FP32", [16], 64) for name in ("OUTPUT0", "OUTPUT1")],
            max_batch_size=64,
        ),
        add_sub,
    ),
    (
        model_spec(
            "identity",
            [tensor_spec("INPUT0", "FP32", [-1])],
            [tensor_spec("OUTPUT0", "FP32", [-1])],
        ),
        identity,
    ),
    (
        model_spec(
            "classes",
            [tensor_spec("INPUT0", "FP32", [4])],
            [tensor_spec("OUTPUT0", "FP32", [4], labels=["ant", "bee", "cat", "dog"])],
        ),
        identity,
    ),
    (_one_tensor("id_b", dims=[4], labels=LABELS, max_batch_size=8), identity),
    (_one_tensor("id_2d", dims=[2, -1]), identity),
    (_one_tensor("id_vv", "INT32", [-1, -1], max_batch_size=4), identity),
    (_one_tensor("params", "BYTES", [1]), describe),
    (
        model_spec("err", [tensor_spec("CODE", "INT32", [1])], [tensor_spec("OUT", "BYTES", [1])]),
        fail,
    ),
    (_one_tensor("with_parameters", dims=[2]), respond_with_parameters),
    (_one_tensor("silent"), respond_with_nothing),
    (
        model_spec(
            "rep",
            [tensor_spec("IN", "INT32", [-1])],
            [tensor_spec("OUT", "INT32", [1]), tensor_spec("TXT", "BYTES", [-1])],
            is_decoupled=True,
        ),
        respond_to_each,
    ),
    (_one_tensor("repeat", "INT32", [1], is_decoupled=True), count_up),
    (
        model_spec(
            "gen",
            [
                tensor_spec("text_input", "BYTES", [1], 4),
                tensor_spec("max_tokens", "INT32", [1], 4, is_optional=True),
                tensor_spec("stream", "BOOL", [1], 4, is_optional=True),
                tensor_spec("temp", "FP32", [1], 4, is_optional=True),
                tensor_spec("words", "BYTES", [-1], 4, is_optional=True),
            ],
            [tensor_spec("OUT", "BYTES", [-1], 4)],
            max_batch_size=4,
        ),
        describe,
    ),
    *((_one_tensor(f"id_{datatype.lower()}", datatype), identity) for datatype in DATATYPES),
    (_one_tensor("faulty"), complain),
    (_one_tensor("double"), respond_twice),
]

SPECS = [*(spec for spec, _ in _MODELS), *HELD_SPECS]
_COMPUTE = {spec.name: compute for spec, compute in _MODELS}
_CHECKS: dict[str, type[RequestCheck]] = {
    "identity": AnyInputs,
    "held": AnyInputs,
    "held_stream": AnyInputs,
    "tap": AnyInputs,
    "faulty": AnyInputs,
    "double": AnyInputs,
    "classes": EveryRequest,
}
