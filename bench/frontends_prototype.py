"""Compares designs for several frontend processes, before one is built (decision record 033).

    python -m bench.frontends_prototype --designs one A C --frontends 1 2 4 8 --wrk PATH

`one`: one process serves connections and schedules, as `naiad serve` does with one frontend.
`A`:   frontends decode and encode; one scheduler process forms batches and hears of requests once
       per turn of a frontend's loop.
`A-raw`: the same, but the scheduler does not decode tensors: it forwards their bytes.
`C`:   every frontend has a socket to every worker, and a worker joins what waits on its sockets.

HTTP connections are Naiad's own transport, workers are fakes that add and subtract with numpy, and
messages are msgpack, as in the server. The result is requests per second, CPU time per request of
all server processes, and the mean number of requests per batch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import Tensor
from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.http1.response_head import JSON_TYPE
from naiad.transport.http1.route import Route

MAX_BATCH = 64
ENOUGH = 32
LENGTH = struct.Struct("<I")
LUA = Path(__file__).parent / "infer.lua"


class Request(msgspec.Struct, array_like=True):
    handle: int
    id: str
    inputs: list[Tensor]
    outputs: list[str] = []
    parameters: dict[str, str] = {}


class RawRequest(msgspec.Struct, array_like=True):
    handle: int
    id: str
    inputs: msgspec.Raw
    outputs: list[str] = []
    parameters: dict[str, str] = {}


class Response(msgspec.Struct, array_like=True):
    handle: int
    outputs: list[Tensor]


class RawResponse(msgspec.Struct, array_like=True):
    handle: int
    outputs: msgspec.Raw


class JsonInput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class JsonRequest(msgspec.Struct):
    inputs: list[JsonInput]
    id: str = ""


class JsonOutput(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[float]


class Pipe:
    """A socket that carries lists of structs, on the event loop."""

    def __init__(self, sock: socket.socket, kind: Any, on_list: Callable[[list[Any]], None]):
        sock.setblocking(False)
        self._sock = sock
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._encode = msgspec.msgpack.Encoder().encode_into
        self._out = bytearray()
        self._rest = bytearray()
        self._buffer = bytearray(1 << 18)
        self._on_list = on_list

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._sock, self.read)

    def send(self, items: list[Any]) -> None:
        self._encode(items, self._out, 4)
        LENGTH.pack_into(self._out, 0, len(self._out) - 4)
        view = memoryview(self._out)
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                select.select([], [self._sock], [])

    def read(self) -> None:
        try:
            size = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            return
        if not size:
            os._exit(0)
        self._rest += memoryview(self._buffer)[:size]
        start = 0
        while len(self._rest) - start >= 4:
            (length,) = LENGTH.unpack_from(self._rest, start)
            if len(self._rest) - start - 4 < length:
                break
            # A copy, because raw fields refer to it.
            data = bytes(memoryview(self._rest)[start + 4 : start + 4 + length])
            start += 4 + length
            self._on_list(self._decode(data))
        del self._rest[:start]


class BlockingPipe:
    """The worker's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.decode = msgspec.msgpack.Decoder(list[Request]).decode
        self.encode = msgspec.msgpack.Encoder().encode
        self.rest = bytearray()

    def read(self) -> list[list[Request]]:
        data = self.sock.recv(1 << 18)
        if not data:
            os._exit(0)
        self.rest += data
        lists = []
        while len(self.rest) >= 4:
            (length,) = LENGTH.unpack_from(self.rest)
            if len(self.rest) - 4 < length:
                break
            lists.append(self.decode(bytes(self.rest[4 : 4 + length])))
            del self.rest[: 4 + length]
        return lists

    def send(self, responses: list[Response]) -> None:
        data = self.encode(responses)
        self.sock.sendall(LENGTH.pack(len(data)) + data)


def worker(socks: list[socket.socket], counts: np.ndarray[Any, Any]) -> None:
    pipes = {sock.fileno(): BlockingPipe(sock) for sock in socks}
    poll = select.poll()
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    while True:
        groups = [(pipes[fd], requests) for fd, _ in poll.poll() for requests in pipes[fd].read()]
        if groups:
            counts[0] += 1
            counts[1] += sum(len(requests) for _, requests in groups)
        for pipe, requests in groups:
            pipe.send([execute(request) for request in requests])


def execute(request: Request) -> Response:
    first, second = request.inputs[0].as_numpy(), request.inputs[1].as_numpy()
    return Response(
        request.handle,
        [
            Tensor("OUTPUT0", "FP32", [1, 16], (first + second).tobytes()),
            Tensor("OUTPUT1", "FP32", [1, 16], (first - second).tobytes()),
        ],
    )


class Scheduler:
    """Queues jobs and sends batches to workers that are free; used by `one` and `A`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, socks: list[socket.socket], raw: bool):
        self._loop = loop
        self._queue: deque[Job] = deque()
        self._is_due = False
        self._open: dict[int, Job] = {}
        self._next = 0
        self._kind: Any = RawRequest if raw else Request
        self._free: list[Pipe] = []
        for sock in socks:
            pipe = Pipe(sock, RawResponse if raw else Response, lambda items: None)
            pipe._on_list = partial(self._on_responses, pipe)
            pipe.start(loop)
            self._free.append(pipe)

    def enqueue(self, request: InferRequest, consumer: Callable[..., None]) -> None:
        stream = ResponseStream()
        job = Job(request, stream, time.monotonic_ns(), 1)
        job.queue_start_ns = time.monotonic_ns()
        self._queue.append(job)
        stream.deliver_to(consumer)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._dispatch)
        elif len(self._queue) >= ENOUGH and self._free:
            self._dispatch()

    def _dispatch(self) -> None:
        self._is_due = False
        queue = self._queue
        while queue and self._free:
            pipe = self._free.pop()
            batch = []
            for _ in range(min(MAX_BATCH, len(queue))):
                job = queue.popleft()
                self._next += 1
                self._open[self._next] = job
                request = job.request
                batch.append(self._kind(self._next, request.id, request.inputs))
            pipe.send(batch)

    def _on_responses(self, pipe: Pipe, items: list[Any]) -> None:
        self._free.append(pipe)
        if self._queue:
            self._dispatch()
        for item in items:
            job = self._open.pop(item.handle)
            job.stream.put(InferResponse("add_sub", "1", job.request.id, item.outputs), True)


DECODE = msgspec.json.Decoder(JsonRequest).decode
ENCODE = msgspec.json.Encoder().encode


def decode(body: Any) -> tuple[str, list[Tensor]]:
    parsed = DECODE(body)
    return parsed.id, [
        Tensor(item.name, item.datatype, item.shape, struct.pack(f"<{len(item.data)}f", *item.data))
        for item in parsed.inputs
    ]


def respond(exchange: Exchange, outputs: list[Tensor]) -> None:
    body = ENCODE(
        {
            "model_name": "add_sub",
            "model_version": "1",
            "outputs": [
                JsonOutput(
                    item.name, item.datatype, item.shape, list(struct.unpack("<16f", item.data))
                )
                for item in outputs
            ],
        }
    )
    exchange.respond(200, JSON_TYPE, body)


def serve(handle: Callable[[Exchange], None], listener: socket.socket) -> None:
    endpoint = Http1Endpoint(lambda head: Route(handle), Http1Limits())

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            endpoint.protocol_factory, sock=listener, backlog=1024
        )
        await server.serve_forever()

    asyncio.get_event_loop().run_until_complete(run())


def run_one(listener: socket.socket, workers: list[socket.socket]) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    scheduler = Scheduler(loop, workers, raw=False)

    def handle(exchange: Exchange) -> None:
        id, inputs = decode(exchange.body)
        scheduler.enqueue(
            InferRequest("add_sub", inputs, id=id),
            lambda response, is_final: respond(exchange, response.outputs),
        )

    serve(handle, listener)


class Outbox:
    """Sends what was added in one turn of the loop as one message."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.items: list[Any] = []
        self.send: Callable[[list[Any]], None]

    def add(self, item: Any) -> None:
        if not self.items:
            self._loop.call_soon(self._flush)
        self.items.append(item)

    def _flush(self) -> None:
        items, self.items = self.items, []
        self.send(items)


def run_scheduler(
    frontends: list[socket.socket], workers: list[socket.socket], *, raw: bool
) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    scheduler = Scheduler(loop, workers, raw)
    answer = RawResponse if raw else Response
    for sock in frontends:
        outbox = Outbox(loop)

        def on_list(items: list[Any], outbox: Outbox = outbox) -> None:
            for item in items:

                def deliver(
                    response: Any, _: bool, handle: int = item.handle, add: Any = outbox.add
                ) -> None:
                    add(answer(handle, response.outputs))

                scheduler.enqueue(InferRequest("add_sub", item.inputs, id=item.id), deliver)

        pipe = Pipe(sock, RawRequest if raw else Request, on_list)
        outbox.send = pipe.send
        pipe.start(loop)
    loop.run_forever()


def run_frontend_a(listener: socket.socket, scheduler: socket.socket) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    pending: dict[int, Exchange] = {}
    outbox = Outbox(loop)
    handles = iter(range(1, 1 << 62))

    def on_list(items: list[Response]) -> None:
        for item in items:
            respond(pending.pop(item.handle), item.outputs)

    pipe = Pipe(scheduler, Response, on_list)
    outbox.send = pipe.send
    pipe.start(loop)

    def handle(exchange: Exchange) -> None:
        id, inputs = decode(exchange.body)
        number = next(handles)
        pending[number] = exchange
        outbox.add(Request(number, id, inputs))

    serve(handle, listener)


def run_frontend_c(
    listener: socket.socket, workers: list[socket.socket], load: np.ndarray[Any, Any], me: int
) -> None:
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    pending: dict[int, Exchange] = {}
    outbox = Outbox(loop)
    handles = iter(range(1, 1 << 62))
    mine = load[me]
    pipes: list[Pipe] = []

    def on_list(number: int, items: list[Response]) -> None:
        mine[number] -= len(items)
        for item in items:
            respond(pending.pop(item.handle), item.outputs)

    for number, sock in enumerate(workers):
        pipe = Pipe(sock, Response, partial(on_list, number))
        pipe.start(loop)
        pipes.append(pipe)

    def send(items: list[Request]) -> None:
        number = int(load.sum(0).argmin())
        mine[number] += len(items)
        pipes[number].send(items)

    outbox.send = send

    def handle(exchange: Exchange) -> None:
        id, inputs = decode(exchange.body)
        number = next(handles)
        pending[number] = exchange
        outbox.add(Request(number, id, inputs))

    serve(handle, listener)


def fork(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            run()
        finally:
            os._exit(1)
    return pid


def listeners(count: int) -> tuple[int, list[socket.socket]]:
    socks: list[socket.socket] = []
    port = 0
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        port = sock.getsockname()[1]
        socks.append(sock)
    return port, socks


def shared(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    import mmap

    size = int(np.prod(shape)) * 8
    return np.frombuffer(mmap.mmap(-1, max(size, 8)), np.int64)[: size // 8].reshape(shape)


def start(design: str, frontends: int, instances: int) -> tuple[int, list[int], Any]:
    port, socks = listeners(frontends)
    counts = shared((instances, 2))
    pids: list[int] = []
    if design == "C":
        load = shared((frontends, instances))
        pairs = [[socket.socketpair() for _ in range(instances)] for _ in range(frontends)]
        for number in range(instances):
            ends = [pairs[front][number][1] for front in range(frontends)]
            pids.append(fork(partial(worker, ends, counts[number])))
        for front in range(frontends):
            ends = [pair[0] for pair in pairs[front]]
            pids.append(fork(partial(run_frontend_c, socks[front], ends, load, front)))
        opened = [sock for row in pairs for pair in row for sock in pair]
    else:
        single = [socket.socketpair() for _ in range(instances)]
        for number, (_, end) in enumerate(single):
            pids.append(fork(partial(worker, [end], counts[number])))
        ends = [pair[0] for pair in single]
        opened = [sock for pair in single for sock in pair]
        if design == "one":
            pids.append(fork(lambda: run_one(socks[0], ends)))
        else:
            links = [socket.socketpair() for _ in range(frontends)]
            raw = design == "A-raw"
            pids.append(fork(lambda: run_scheduler([a for a, _ in links], ends, raw=raw)))
            pids += [
                fork(partial(run_frontend_a, socks[front], links[front][1]))
                for front in range(frontends)
            ]
            opened += [sock for pair in links for sock in pair]
    for sock in (*socks, *opened):
        sock.close()
    return port, pids, counts


def cpu_s(pids: list[int]) -> list[float]:
    ticks = os.sysconf("SC_CLK_TCK")
    times = []
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        times.append((int(fields[11]) + int(fields[12])) / ticks)
    return times


def load(wrk: str, port: int, connections: int, seconds: float, threads: int) -> tuple[float, str]:
    text = subprocess.run(
        [wrk, f"-t{threads}", f"-c{connections}", f"-d{int(seconds)}s", "--latency", "-s", str(LUA),
         f"http://127.0.0.1:{port}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", text)[1])  # type: ignore[index]
    p99 = re.search(r"99%\s+(\S+)", text)[1]  # type: ignore[index]
    if "Non-2xx" in text or "Socket errors" in text:
        raise SystemExit(text)
    return rate, p99


def measure(design: str, frontends: int, options: argparse.Namespace) -> dict[str, Any]:
    port, pids, counts = start(design, frontends, options.instances)
    try:
        time.sleep(0.5)
        load(options.wrk, port, options.connections, 1, options.threads)
        counts[:] = 0
        before, begin = cpu_s(pids), time.monotonic()
        rate, p99 = load(options.wrk, port, options.connections, options.seconds, options.threads)
        took = time.monotonic() - begin
        used = [after - old for after, old in zip(cpu_s(pids), before, strict=True)]
        parts = {"workers": used[: options.instances], "rest": used[options.instances :]}
        return {
            "design": design,
            "frontends": frontends,
            "requests_per_s": round(rate),
            "cpu_us_per_request": round(sum(used) / took / rate * 1e6, 1),
            "p99": p99,
            "requests_per_batch": round(float(counts[:, 1].sum() / max(counts[:, 0].sum(), 1)), 1),
            "busy": {name: [round(t / took, 2) for t in times] for name, times in parts.items()},
        }
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--designs", nargs="+", default=["one", "A", "A-raw", "C"])
    parser.add_argument("--frontends", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--wrk", default="wrk")
    options = parser.parse_args()
    for design in options.designs:
        for frontends in options.frontends if design != "one" else [1]:
            print(json.dumps(measure(design, frontends, options)), flush=True)


if __name__ == "__main__":
    main()
