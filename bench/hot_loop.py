"""CPU of one request in the HTTP and gRPC frontends alone, without sockets, scheduler and workers.

In:  the bytes of requests that repeat, fed to a connection the way a transport feeds them. Out:
     CPU microseconds per request, the median and the minimum of several rounds.
Use: `python -m bench.hot_loop [--fast-paths false] [--keys 1000] [part ...]`. Compare two checkouts
     by running them in turns; absolute figures depend on the machine. With --keys the server has
     so many API keys, and the requests carry one of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import uvloop

from bench.parts import add_parts
from naiad.core.memory_budget import MemoryBudget
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.frontends.grpc.frontend import GrpcFrontend
from naiad.frontends.http.frontend import HttpFrontend
from naiad.frontends.http.options import HttpOptions
from naiad.keys import key_change
from naiad.keys.guard import Guard
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_table import KeyTable
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.repository.request_check import RequestCheck
from naiad.shm.region_table import RegionTable
from naiad.trace.tracing import Tracing
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.hpack import encode_headers

ROUNDS = 60
HEAD = encode_headers(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/ModelInfer"),
        (b":authority", b"localhost:8001"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"grpc-c++/1.60.0"),
        (b"grpc-accept-encoding", b"identity, deflate, gzip"),
    ]
)


class Transport:
    """Accepts everything and keeps nothing."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self.num_bytes += len(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.num_bytes += sum(map(len, parts))

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    abort = close

    def pause_reading(self) -> None:
        """The loop hands over bytes itself, so there is nothing to pause."""

    resume_reading = pause_reading


def _spec(name: str, inputs: list[str], outputs: list[str], dims: list[int]) -> ModelSpec:
    shape = [-1, *dims]
    return ModelSpec(
        name,
        1,
        [1],
        "python",
        64,
        {tensor: TensorSpec(tensor, "FP32", dims, shape) for tensor in inputs},
        {tensor: TensorSpec(tensor, "FP32", dims, shape) for tensor in outputs},
        False,
    )


class Model:
    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.check = RequestCheck(spec).check
        self.on_stopped: list[Callable[[], None]] = []


class Core:
    """Stands in for InferenceCore: checks requests as it does, and answers when the bench says."""

    def __init__(self) -> None:
        self.tracing = Tracing()
        self.budget = MemoryBudget()
        self.regions = RegionTable()
        self.models = {
            spec.name: Model(spec)
            for spec in (
                _spec("add_sub", ["INPUT0", "INPUT1"], ["OUTPUT0", "OUTPUT1"], [16]),
                _spec("identity_fp32", ["INPUT0"], ["OUTPUT0"], [-1]),
            )
        }
        self.memory = memoryview(np.empty(1 << 21, np.uint8).data)
        self.waiting: tuple[InferRequest, ResponseStream] | None = None

    def model(self, name: str, version: str = "") -> Model:
        return self.models[name]

    def input_buffer(self, name: str, num_bytes: int) -> memoryview | None:
        return self.memory[:num_bytes] if num_bytes > 4096 else None

    def infer(self, request: InferRequest, model: Model | None = None) -> ResponseStream:
        found = model or self.models[request.model_name]
        found.check(request)
        return self._enqueue(request)

    def infer_validated(self, request: InferRequest, model: Model) -> ResponseStream:
        assert request.signature is not None
        request.batch_size = request.signature.batch_size
        return self._enqueue(request)

    def _enqueue(self, request: InferRequest) -> ResponseStream:
        stream = ResponseStream()
        self.waiting = (request, stream)
        return stream

    def respond(self) -> None:
        assert self.waiting is not None
        request, stream = self.waiting
        self.waiting = None
        outputs = [
            Tensor("OUTPUT" + tensor.name[5:], "FP32", tensor.shape, tensor.data)
            for tensor in request.inputs
        ]
        stream.put(InferResponse(request.model_name, "1", request.id, outputs), True)


def _binary(model: str, count: int, id: str = "", elements: int = 16) -> list[bytes]:
    num_inputs = 2 if model == "add_sub" else 1
    requests: list[bytes] = []
    for number in range(count):
        document: dict[str, Any] = {"id": f"{id}{number % 10}"} if id else {}
        document["inputs"] = [
            {
                "name": f"INPUT{at}",
                "shape": [1, elements],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4 * elements},
            }
            for at in range(num_inputs)
        ]
        document["outputs"] = [
            {"name": f"OUTPUT{at}", "parameters": {"binary_data": True}} for at in range(num_inputs)
        ]
        text = json.dumps(document, separators=(",", ":")).encode()
        data = np.full(elements * num_inputs, number, np.float32).tobytes()
        requests.append(_http(model, text + data, len(text)))
    return requests


def _json(model: str, count: int) -> list[bytes]:
    requests: list[bytes] = []
    for number in range(count):
        data = [round(number * 1.37 + at, 3) for at in range(16)]
        inputs = [
            {"name": f"INPUT{at}", "shape": [1, 16], "datatype": "FP32", "data": data}
            for at in range(2)
        ]
        requests.append(_http(model, json.dumps({"inputs": inputs}).encode(), None))
    return requests


def _http(model: str, body: bytes, header_length: int | None) -> bytes:
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost:8000\r\nAccept: */*\r\n"
        f"Content-Length: {len(body)}\r\n"
    )
    if header_length is not None:
        head += f"Inference-Header-Content-Length: {header_length}\r\n"
        head += "Content-Type: application/octet-stream\r\n"
    return head.encode() + b"\r\n" + body


def _grpc(model: str, count: int, id: str = "", elements: int = 16) -> list[bytes]:
    num_inputs = 2 if model == "add_sub" else 1
    requests: list[bytes] = []
    for number in range(count):
        message = ModelInferRequest(model_name=model, id=f"{id}{number % 10}" if id else "")
        for at in range(num_inputs):
            message.inputs.add(name=f"INPUT{at}", datatype="FP32", shape=[1, elements])
            message.outputs.add(name=f"OUTPUT{at}")
            message.raw_input_contents.append(np.full(elements, number, np.float32).tobytes())
        raw = message.SerializeToString()
        requests.append(struct.pack(">BI", 0, len(raw)) + raw)
    return requests


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


def _guard(num_keys: int) -> tuple[Guard | None, str]:
    """A guard with this many keys, and the text of one of them."""
    if not num_keys:
        return None, ""
    document, token, now = KeyDocument(), "", utc_now()
    for number in range(num_keys):
        issued = key_change.create(document, NewKey(name=f"key {number}"), now)
        document, token = issued.document, issued.token
    table = KeyTable()
    table.replace(document)
    return Guard(table), token


async def _serve_http(
    requests: list[bytes], rounds: int, options: HttpOptions, num_keys: int
) -> list[float]:
    core = Core()
    guard, token = _guard(num_keys)
    if token:
        field = f"\r\nAuthorization: Bearer {token}\r\nContent-Length".encode()
        requests = [request.replace(b"\r\nContent-Length", field, 1) for request in requests]
    frontend = HttpFrontend(core, options, guard=guard)  # type: ignore[arg-type]
    connection = frontend.protocol_factory()
    connection.connection_made(Transport())  # type: ignore[arg-type]

    async def round_trip() -> None:
        for request in requests:
            _feed(connection, request)
            core.respond()

    return await _measure(round_trip, rounds, len(requests))


async def _serve_grpc(
    messages: list[bytes], rounds: int, options: GrpcOptions, num_keys: int
) -> list[float]:
    core = Core()
    guard, token = _guard(num_keys)
    head = HEAD
    if token:
        head += encode_headers([(b"authorization", b"Bearer " + token.encode())])
    frontend = GrpcFrontend(core, options, guard)  # type: ignore[arg-type]
    protocol = frontend.protocol_factory()
    protocol.connection_made(Transport())  # type: ignore[arg-type]
    _feed(
        protocol,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b"\0\4\0\x7f\0\0\0\5\0\x7f\0\0"),
    )
    _feed(protocol, _frame(8, 0, 0, struct.pack(">I", 1 << 30)))
    next_id = 1

    async def round_trip() -> None:
        nonlocal next_id
        for message in messages:
            data = _frame(1, 4, next_id, head) + _frame(0, 1, next_id, message)
            if len(message) > 4096:
                data = _frame(8, 0, 0, struct.pack(">I", len(message))) + data
            next_id += 2
            _feed(protocol, data)
            core.respond()
            protocol.flush()
        _feed(protocol, _frame(8, 0, 0, struct.pack(">I", 200 * len(messages))))

    return await _measure(round_trip, rounds, len(messages))


def _feed(connection: Any, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:] if size < len(data) else b""


async def _measure(round_trip: Callable[[], Any], rounds: int, count: int) -> list[float]:
    await round_trip()
    durations: list[float] = []
    for _ in range(rounds):
        await asyncio.sleep(0)
        gc.collect()
        gc.disable()
        start_ns = time.thread_time_ns()
        await round_trip()
        durations.append((time.thread_time_ns() - start_ns) / 1000 / count)
        gc.enable()
    return durations


PARTS: dict[str, tuple[Callable[..., Any], Callable[[], list[bytes]]]] = {
    "http": (_serve_http, lambda: _binary("add_sub", 300)),
    "http-id": (_serve_http, lambda: _binary("add_sub", 300, id="request-")),
    "http-json": (_serve_http, lambda: _json("add_sub", 300)),
    "http-64k": (_serve_http, lambda: _binary("identity_fp32", 50, elements=1 << 14)),
    "http-1m": (_serve_http, lambda: _binary("identity_fp32", 10, elements=1 << 18)),
    "grpc": (_serve_grpc, lambda: _grpc("add_sub", 300)),
    "grpc-id": (_serve_grpc, lambda: _grpc("add_sub", 300, id="request-")),
    "grpc-1m": (_serve_grpc, lambda: _grpc("identity_fp32", 10, elements=1 << 18)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_parts(parser, list(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--fast-paths", choices=["true", "false"], default="")
    options = parser.parse_args()
    switch = {"fast_paths": options.fast_paths == "true"} if options.fast_paths else {}
    for part in options.parts:
        serve, make = PARTS[part]
        kind = HttpOptions if serve is _serve_http else GrpcOptions
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            durations = runner.run(serve(make(), options.rounds, kind(**switch), options.keys))
        print(f"{part:10} {statistics.median(durations):8.2f} us  min {min(durations):8.2f} us")


if __name__ == "__main__":
    main()
