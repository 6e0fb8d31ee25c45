"""Sends ten times what a model can serve, and measures the requests that are admitted, those that
are refused, and the server's memory.

    python -m bench.overload [--minutes 5] [--service-ms 5] [--body-kib 64] [--overload 10]
        [half] [full] [overload] [short-queue] [small-budget]

Requests arrive at a fixed rate, whether earlier ones have been served or not, on as many
connections as that needs. The capacity is measured first, with a few clients that each wait for
their response. Every row is a server of its own: half of the capacity, the capacity, then the
overload with the default queue, with a short one (`--max-queue-size`), and with a memory budget
that is reached before the queue is full. Names choose rows; without names all are run.

The first seconds of an overload are a burst, which the queue lets in (--max-queue-wait-secs); the
column "settled p99" leaves them out. The exit code is 1 if a request got neither 200 nor 503 with
Retry-After, if an admitted one waited longer than the queue may take, if a refusal took longer than
--refusal-ms at the 99th percentile, or if memory grew beyond the budget.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import uvloop

from bench.process_tree import MIB, memory_bytes
from tests.server.harness import Server, naiad

CONFIG = """backend: "python"
input [ { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ 1 ] } ]
parameters { key: "seconds" value: { string_value: "%g" } }
"""
MODEL = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.seconds = float(parameters["seconds"]["string_value"])

    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(self.seconds)
            output = pb_utils.Tensor("OUT", np.zeros(1, np.uint8))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
"""
MAX_CONNECTIONS = 4000
SETTLE_S = 5.0
BURST_WAIT_S = 2.0
"""--max-queue-wait-secs of these servers."""
OVERLOAD_WAIT_S = 0.1
"""The time that requests wait in an overload with this limit."""
ALLOWED_BYTES = 128 * MIB
"""Growth that is not requests: connections, buffers of the clients' sockets, Python's own."""


class Row(msgspec.Struct):
    key: str
    name: str
    load: float
    """As a multiple of the capacity."""
    flags: list[str] = []
    max_waiting: int = 0
    """The number of requests that the flags let wait; 0 means the default."""


class Outcome(msgspec.Struct):
    sent: int = 0
    admitted_s: list[float] = []
    settled_s: list[float] = []
    """The part of `admitted_s` that was sent after the first seconds."""
    refused_s: list[float] = []
    faults: list[str] = []
    unsent: int = 0
    """Requests for which no connection was left: the client was too slow, not the server."""
    before_bytes: int = 0
    peak_bytes: int = 0
    budget_bytes: int = 0
    peak_used_bytes: int = 0


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._data = b""
        self._start_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        self._start_s = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        fields = head.lower().split(b"\r\n")
        length = next(int(field[15:]) for field in fields if field.startswith(b"content-length:"))
        if len(body) < length:
            return
        self._data = b""
        took_s = time.perf_counter() - self._start_s
        self._start_s = 0.0
        self._client.on_response(self, fields, took_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.on_lost(self, is_waiting=bool(self._start_s))


class Client:
    """Sends requests at a fixed rate."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._idle: deque[Connection] = deque()
        self._num_connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled_s = time.perf_counter() + SETTLE_S
        self.outcome = Outcome()

    def send(self) -> None:
        self.outcome.sent += 1
        if self._idle:
            self._idle.pop().send(self._request)
        elif self._num_connections < MAX_CONNECTIONS:
            self._num_connections += 1
            task = asyncio.ensure_future(self._connect())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self.outcome.unsent += 1

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self), "127.0.0.1", self._port
        )
        connection.send(self._request)

    def on_response(self, connection: Connection, fields: list[bytes], took_s: float) -> None:
        outcome = self.outcome
        if fields[0].startswith(b"http/1.1 200"):
            outcome.admitted_s.append(took_s)
            if time.perf_counter() - took_s > self._settled_s:
                outcome.settled_s.append(took_s)
        elif fields[0].startswith(b"http/1.1 503"):
            outcome.refused_s.append(took_s)
            if not any(field.startswith(b"retry-after:") for field in fields):
                outcome.faults.append("503 without Retry-After")
        else:
            outcome.faults.append(fields[0].decode())
        if b"connection: close" in fields:
            connection.transport.close()
        else:
            self._idle.append(connection)

    def on_lost(self, connection: Connection, *, is_waiting: bool) -> None:
        self._num_connections -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        if is_waiting:
            self.outcome.faults.append("connection lost before the response")

    async def run(self, rate_per_s: float, seconds: float) -> None:
        start_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - start_s) < seconds:
            while self.outcome.sent < elapsed_s * rate_per_s:
                self.send()
            await asyncio.sleep(0.001)

    async def drain(self, seconds: float) -> None:
        """Waits for the requests that are still under way."""
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            outcome = self.outcome
            num_done = len(outcome.admitted_s) + len(outcome.refused_s) + len(outcome.faults)
            if num_done + outcome.unsent >= outcome.sent:
                return
            await asyncio.sleep(0.05)
        self.outcome.faults.append("no response")


def infer_request(num_bytes: int) -> bytes:
    tensor = {
        "name": "IN",
        "datatype": "UINT8",
        "shape": [num_bytes],
        "parameters": {"binary_data_size": num_bytes},
    }
    header = json.dumps({"inputs": [tensor]}).encode()
    head = (
        "POST /v2/models/slow/infer HTTP/1.1\r\nHost: bench\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + num_bytes}\r\n\r\n"
    )
    return head.encode() + header + bytes(num_bytes)


def metric(server: Server, name: str) -> int:
    page = server.get("/metrics", "metrics")[1].decode()
    return next(
        int(float(line.split()[1])) for line in page.splitlines() if line.startswith(f"{name} ")
    )


async def _watch(server: Server, outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    while True:
        reading = await loop.run_in_executor(None, memory_bytes, server.pid)
        outcome.peak_bytes = max(outcome.peak_bytes, reading["Pss"])
        used = await loop.run_in_executor(None, metric, server, "naiad_request_memory_used_bytes")
        outcome.peak_used_bytes = max(outcome.peak_used_bytes, used)
        await asyncio.sleep(1)


def _capacity_per_s(server: Server, request: bytes, seconds: float = 3.0) -> float:
    """The requests per second that a few clients get served that wait for each response."""
    counts = [0] * 4
    end_s = time.perf_counter() + seconds

    def call(index: int) -> None:
        with socket.create_connection(("127.0.0.1", server.http_port)) as connection:
            while time.perf_counter() < end_s:
                connection.sendall(request)
                if not connection.recv(65536).startswith(b"HTTP/1.1 200"):
                    raise SystemExit("the model does not serve")
                counts[index] += 1

    threads = [threading.Thread(target=call, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


async def _load(server: Server, request: bytes, rate_per_s: float, seconds: float) -> Outcome:
    client = Client(server.http_port, request)
    client.outcome.before_bytes = memory_bytes(server.pid)["Pss"]
    client.outcome.budget_bytes = metric(server, "naiad_request_memory_limit_bytes")
    watching = asyncio.ensure_future(_watch(server, client.outcome))
    await client.run(rate_per_s, seconds)
    await client.drain(60)
    watching.cancel()
    return client.outcome


def percentile_ms(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return 1000 * ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def rows(chosen: Any) -> Iterator[Row]:
    small_budget = max(64 * chosen.body_kib * 1024, 4 * MIB)
    overload = chosen.overload
    yield Row("half", "0.5x", 0.5)
    yield Row("full", "1x", 1.0)
    yield Row("overload", f"{overload:g}x", overload)
    yield Row(
        "short-queue",
        f"{overload:g}x, --max-queue-size=4",
        overload,
        ["--max-queue-size=4"],
        4,
    )
    yield Row(
        "small-budget",
        f"{overload:g}x, budget of {small_budget // MIB} MiB",
        overload,
        [f"--request-memory-byte-size={small_budget}"],
        small_budget // (chosen.body_kib * 1024),
    )


def check(row: Row, outcome: Outcome, chosen: Any) -> list[str]:
    """Returns what is wrong."""
    faults = [f"{count}x {fault}" for fault, count in _counts(outcome.faults).items()]
    wait_ms = 1000 * (OVERLOAD_WAIT_S if row.load > 1 else BURST_WAIT_S)
    if row.max_waiting:
        wait_ms = row.max_waiting * chosen.service_ms
    limit_ms = 1.5 * (wait_ms + 2 * chosen.service_ms) + 50
    if percentile_ms(outcome.settled_s, 0.99) > limit_ms:
        faults.append(f"admitted requests waited longer than {limit_ms:.0f} ms")
    if row.load < 1 and outcome.refused_s:
        faults.append("requests were refused without overload")
    if row.load > 1 and not outcome.refused_s:
        faults.append("nothing was refused")
    if percentile_ms(outcome.refused_s, 0.99) > chosen.refusal_ms:
        faults.append(f"refusals took longer than {chosen.refusal_ms} ms")
    if outcome.peak_bytes > outcome.before_bytes + outcome.budget_bytes + ALLOWED_BYTES:
        faults.append("memory grew beyond the budget")
    return faults


def _counts(faults: list[str]) -> dict[str, int]:
    return {fault: faults.count(fault) for fault in sorted(set(faults))}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", help="rows to run; all of them by default")
    parser.add_argument("--minutes", type=float, default=5.0, help="time for each row")
    parser.add_argument("--service-ms", type=float, default=5.0)
    parser.add_argument("--body-kib", type=int, default=64)
    parser.add_argument("--overload", type=float, default=10.0)
    parser.add_argument("--refusal-ms", type=float, default=250.0)
    chosen = parser.parse_args()
    unknown = set(chosen.rows) - {row.key for row in rows(chosen)}
    if unknown:
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    request = infer_request(chosen.body_kib * 1024)
    print(
        "| load | sent | served | refused | served p50 / p99 ms | settled p99 ms "
        "| refused p50 / p99 ms | PSS before / peak MiB | of the budget MiB | faults |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---|")
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "slow"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG % (chosen.service_ms / 1000))
        (model / "1" / "model.py").write_text(MODEL)
        for row in rows(chosen):
            if chosen.rows and row.key not in chosen.rows:
                continue
            flags = [f"--max-queue-wait-secs={BURST_WAIT_S}", *row.flags]
            with naiad([folder], flags) as server:
                rate_per_s = row.load * _capacity_per_s(server, request)
                outcome = uvloop.run(_load(server, request, rate_per_s, 60 * chosen.minutes))
            faults = check(row, outcome, chosen)
            is_good = is_good and not faults
            cells = [
                row.name,
                f"{outcome.sent - outcome.unsent:,}",
                f"{len(outcome.admitted_s):,}",
                f"{len(outcome.refused_s):,}",
                f"{percentile_ms(outcome.admitted_s, 0.5):.1f} / "
                f"{percentile_ms(outcome.admitted_s, 0.99):.1f}",
                f"{percentile_ms(outcome.settled_s, 0.99):.1f}",
                f"{percentile_ms(outcome.refused_s, 0.5):.1f} / "
                f"{percentile_ms(outcome.refused_s, 0.99):.1f}",
                f"{outcome.before_bytes / MIB:.0f} / {outcome.peak_bytes / MIB:.0f}",
                f"{outcome.peak_used_bytes / MIB:.0f} of {outcome.budget_bytes / MIB:.0f}",
                "; ".join(faults) or "none",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
