"""A core without workers for HTTP tests: models that compute in place, models that a test answers
by hand, and a server around it.

Requests are checked by the real RequestCheck, so that errors carry the real words.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelIndex, ModelSpec, ServerMetadata, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import Code, NaiadError, internal, invalid_arg, not_found
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.load_report import Gauges
from naiad.frontends.http.options import HttpOptions
from naiad.repository.request_check import RequestCheck
from naiad.shm.region_inference import infer_with_regions
from naiad.shm.region_table import RegionTable
from naiad.trace.tracing import Tracing

Compute = Callable[[InferRequest, ResponseStream, ModelSpec], None]


def tensor_spec(
    name: str,
    datatype: str,
    dims: list[int],
    max_batch_size: int,
    *,
    is_optional: bool = False,
    labels: list[str] | None = None,
) -> TensorSpec:
    return TensorSpec(
        name,
        datatype,
        dims,
        [-1, *dims] if max_batch_size else dims,
        is_optional,
        labels=labels or [],
    )


class FakeModel:
    def __init__(self, spec: ModelSpec, compute: Compute) -> None:
        self.spec = spec
        self.compute = compute
        self.check = RequestCheck(spec).check
        self.statistics = ModelStatistics(spec.name, spec.version)


def model(
    name: str,
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    compute: Compute,
    *,
    max_batch_size: int = 0,
    is_decoupled: bool = False,
) -> FakeModel:
    spec = ModelSpec(
        name,
        1,
        [1],
        "python",
        max_batch_size,
        {t.name: t for t in inputs},
        {t.name: t for t in outputs},
        is_decoupled=is_decoupled,
    )
    return FakeModel(spec, compute)


def respond(
    request: InferRequest,
    stream: ResponseStream,
    outputs: list[Tensor],
    *,
    is_final: bool = True,
    **more: Any,
) -> None:
    stream.put(
        InferResponse(
            request.model_name, request.model_version or "1", request.id, outputs, **more
        ),
        is_final,
    )


# What the models do.


def add_sub(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    left, right = request.inputs
    a, b = np.frombuffer(left.data, np.float32), np.frombuffer(right.data, np.float32)
    respond(
        request,
        stream,
        [
            Tensor("OUTPUT0", "FP32", left.shape, (a + b).tobytes()),
            Tensor("OUTPUT1", "FP32", left.shape, (a - b).tobytes()),
        ],
    )


def identity(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    respond(
        request,
        stream,
        [Tensor(t.name.replace("IN", "OUT"), t.datatype, t.shape, t.data) for t in request.inputs],
    )


def describe(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """One string that shows what reached the model."""
    inputs = {t.name: [t.shape, t.as_numpy().tolist()] for t in request.inputs}
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


def repeat(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    """A response per value; a negative one is an error response."""
    for value in request.inputs[0].as_numpy().ravel().tolist():
        if value < 0:
            error = NaiadError(Code.UNAVAILABLE, f"neg {value}", retry_after_s=2)
            respond(request, stream, [], is_final=False, error=error)
        else:
            out = tensor_from_numpy("OUT", np.array([value], np.int32))
            text = tensor_from_numpy("TXT", np.array([b"x"] * value, object))
            respond(request, stream, [out, text], is_final=False)
    stream.close()


def fail(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    code = list(Code)[int(request.inputs[0].as_numpy()[0])]
    stream.fail(
        NaiadError(code, f"code {code.name}", retry_after_s=7 if code is Code.UNAVAILABLE else None)
    )


def answer_with_parameters(request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
    outputs = [Tensor("OUT", "FP32", [2], request.inputs[0].data)]
    respond(request, stream, outputs, parameters={"a": 1, "b": True, "c": "x", "d": 0.5})


LABELS = ["cat", "dog", "bird", "fish"]


def models() -> dict[str, FakeModel]:
    found = [
        model(
            "add_sub",
            [tensor_spec(name, "FP32", [16], 64) for name in ("INPUT0", "INPUT1")],
            [tensor_spec(name, "FP32", [16], 64) for name in ("OUTPUT0", "OUTPUT1")],
            add_sub,
            max_batch_size=64,
        ),
        model(
            "id_b",
            [tensor_spec("IN", "FP32", [4], 8)],
            [tensor_spec("OUT", "FP32", [4], 8, labels=LABELS)],
            identity,
            max_batch_size=8,
        ),
        model(
            "id_2d",
            [tensor_spec("IN", "FP32", [2, -1], 0)],
            [tensor_spec("OUT", "FP32", [2, -1], 0)],
            identity,
        ),
        model(
            "id_vv",
            [tensor_spec("IN", "INT32", [-1, -1], 4)],
            [tensor_spec("OUT", "INT32", [-1, -1], 4)],
            identity,
            max_batch_size=4,
        ),
        model(
            "params",
            [tensor_spec("IN", "BYTES", [1], 0)],
            [tensor_spec("OUT", "BYTES", [1], 0)],
            describe,
        ),
        model(
            "err",
            [tensor_spec("CODE", "INT32", [1], 0)],
            [tensor_spec("OUT", "BYTES", [1], 0)],
            fail,
        ),
        model(
            "with_parameters",
            [tensor_spec("IN", "FP32", [2], 0)],
            [tensor_spec("OUT", "FP32", [2], 0)],
            answer_with_parameters,
        ),
        model(
            "rep",
            [tensor_spec("IN", "INT32", [-1], 0)],
            [tensor_spec("OUT", "INT32", [1], 0), tensor_spec("TXT", "BYTES", [-1], 0)],
            repeat,
            is_decoupled=True,
        ),
        model(
            "gen",
            [
                tensor_spec("text_input", "BYTES", [1], 4),
                tensor_spec("max_tokens", "INT32", [1], 4, is_optional=True),
                tensor_spec("stream", "BOOL", [1], 4, is_optional=True),
                tensor_spec("temp", "FP32", [1], 4, is_optional=True),
                tensor_spec("words", "BYTES", [-1], 4, is_optional=True),
            ],
            [tensor_spec("OUT", "BYTES", [-1], 4)],
            describe,
            max_batch_size=4,
        ),
    ]
    found.extend(
        model(
            f"id_{datatype.lower()}",
            [tensor_spec("IN", datatype, [-1], 0)],
            [tensor_spec("OUT", datatype, [-1], 0)],
            identity,
        )
        for datatype in DATATYPES
    )
    return {each.spec.name: each for each in found}


class Held(msgspec.Struct, eq=False):
    """A request that waits for a test to answer it."""

    request: InferRequest
    stream: ResponseStream
    is_cancelled: bool = False


class FakeCore:
    """Duck-typed as InferenceCore."""

    def __init__(self) -> None:
        self.metadata = ServerMetadata(
            "triton", "2.73.0", ["classification", "sequence", "statistics"]
        )
        self.regions = RegionTable()
        self.tracing = Tracing()
        self.models = models()
        self.held: list[Held] = []
        self.on_held = asyncio.Event()
        self.on_cancelled = asyncio.Event()
        self.loaded: list[tuple[str, dict[str, str | bytes]]] = []
        self.unloaded: list[tuple[str, bool]] = []
        self.ready = True
        self.buffers: list[memoryview] = []
        self.gives_buffers = False
        self.num_again = 0
        self.refusal: NaiadError | None = None
        for name, is_decoupled in (("held", False), ("held_stream", True)):
            inputs, outputs = (
                [tensor_spec("IN", "FP32", [-1], 0)],
                [tensor_spec("OUT", "FP32", [-1], 0)],
            )
            self.models[name] = model(name, inputs, outputs, self._hold, is_decoupled=is_decoupled)

    def _hold(self, request: InferRequest, stream: ResponseStream, spec: ModelSpec) -> None:
        held = Held(request, stream)
        stream.on_cancel(lambda: self._cancel(held))
        self.held.append(held)
        self.on_held.set()

    def _cancel(self, held: Held) -> None:
        held.is_cancelled = True
        held.stream.fail(NaiadError(Code.CANCELLED, "cancelled"))
        self.on_cancelled.set()

    async def next_held(self) -> Held:
        while not self.held:
            self.on_held.clear()
            await self.on_held.wait()
        return self.held.pop(0)

    def is_live(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return self.ready

    def is_model_ready(self, name: str, version: str = "") -> bool:
        return name in self.models and version in ("", "1")

    def ask_model_ready(self, name: str, version: str, answer: Callable[[bool], None]) -> None:
        answer(self.is_model_ready(name, version))

    def model(self, name: str, version: str = "") -> FakeModel:
        if name not in self.models:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if version not in ("", "1"):
            raise not_found(f"Request for unknown model: '{name}' version {version} is not found")
        return self.models[name]

    def model_metadata(self, name: str, version: str = "") -> ModelSpec:
        return self.model(name, version).spec

    def model_config_json(self, name: str, version: str = "") -> bytes:
        return msgspec.json.encode(
            {
                "name": self.model(name, version).spec.name,
                "max_batch_size": self.model(name).spec.max_batch_size,
            }
        )

    def statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        if not name:
            return [each.statistics for each in self.models.values()]
        if name not in self.models:
            raise invalid_arg(f"requested model '{name}' is not available")
        return [self.models[name].statistics]

    def infer(self, request: InferRequest, model: object = None) -> ResponseStream:
        if request.regions is not None:
            return infer_with_regions(
                request, self.regions, self.infer, partial(self.input_buffer, request.model_name)
            )
        request.start_ns = time.monotonic_ns()
        found = self.model(request.model_name, request.model_version)
        found.check(request)
        stream = ResponseStream()
        found.compute(request, stream, found.spec)
        if stream.is_closed:
            _count(found.statistics, request)
        return stream

    def infer_again(self, request: InferRequest, found: FakeModel) -> ResponseStream:
        self.num_again += 1
        if self.refusal is not None:
            raise self.refusal
        stream = ResponseStream()
        found.compute(request, stream, found.spec)
        return stream

    def input_buffer(self, model_name: str, num_bytes: int) -> memoryview | None:
        if not self.gives_buffers:
            return None
        buffer = memoryview(bytearray(num_bytes))
        self.buffers.append(buffer)
        return buffer

    def repository_index(self, *, ready_only: bool) -> list[ModelIndex]:
        ready = [ModelIndex(name, "1", "READY") for name in self.models]
        return (
            ready
            if ready_only
            else [*ready, ModelIndex("old", "1", "UNAVAILABLE", "unloaded"), ModelIndex("never")]
        )

    async def load_model(self, name: str, parameters: dict[str, str | bytes]) -> None:
        if name == "nope":
            raise internal("failed to load 'nope', failed to poll from model repository")
        self.loaded.append((name, parameters))

    async def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        self.unloaded.append((name, unload_dependents))


def _count(statistics: ModelStatistics, request: InferRequest) -> None:
    """What perf_analyzer looks at."""
    statistics.inference_count += request.batch_size
    statistics.execution_count += 1
    took_ns = time.monotonic_ns() - request.start_ns
    statistics.success.add(took_ns)
    statistics.queue.add(0)
    for part in (statistics.compute_input, statistics.compute_infer, statistics.compute_output):
        part.add(took_ns // 3)


class HttpServer(msgspec.Struct, eq=False):
    core: FakeCore
    frontend: HttpFrontend
    port: int
    listener: asyncio.Server


@contextlib.asynccontextmanager
async def serving(
    options: HttpOptions | None = None, core: FakeCore | None = None, gauges: Gauges | None = None
) -> AsyncIterator[HttpServer]:
    core = core or FakeCore()
    frontend = HttpFrontend(core, options or HttpOptions(), gauges)  # type: ignore[arg-type]
    listener = await asyncio.get_running_loop().create_server(
        frontend.protocol_factory, "127.0.0.1", 0
    )
    port = listener.sockets[0].getsockname()[1]
    try:
        yield HttpServer(core, frontend, port, listener)
    finally:
        listener.close()
        await frontend.stop(0.0)
        await listener.wait_closed()
