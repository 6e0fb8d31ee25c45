"""Streaming clients of a language model that are faster than the server: plain sockets, one epoll
loop per process, several processes.

    measure(Plan(...)) starts the processes and merges their readings.
    python -m bench.stream_load
        Runs one of these processes. It reads its share of the plan as a line of JSON from stdin,
        writes a line when it has started, reads when to begin, and writes its readings as JSON.

Each client has its own connection and one request at a time. It sends the next request immediately,
or at a fixed rate. At a fixed rate, times count from the due time of a request, not from the time
it was sent. The run fails unless every response has all of its tokens.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.stream_wire import Chat, Grpc, GrpcTokens, Http, Whole, Wire

WIRES: dict[str, Callable[[int, str], Wire]] = {
    "http": Http, "chat": Chat, "grpc": Grpc, "grpc-tokens": GrpcTokens, "whole": Whole,
}  # fmt: skip
NUM_PROCESSES = 8
START_S = 0.2
"""Time from the moment when all processes have started to the first request."""


class Plan(msgspec.Struct):
    protocol: str
    """A key of WIRES: http and grpc are streams, whole is a single response."""
    port: int
    model: str
    clients: int = 64
    num_in: int = 128
    num_out: int = 128
    warm_s: float = 2.0
    window_s: float = 8.0
    rate: float = 0.0
    """Requests per second of all clients together; 0 if each sends its next immediately."""
    seed: int = 0
    """Seed of the prompts. Every run against the same server needs another one, otherwise the
    prompts are in its prefix cache."""
    begin_s: float = 0.0
    """Start time on the monotonic clock, which all processes share."""
    first: int = 0
    """Number of this process's first client."""
    num_models: int = 0
    """Clients use the models `model`0, `model`1 and so on in turn, unless it is 0."""
    total: int = 64


class Readings(msgspec.Struct):
    """Readings of the requests inside the window."""

    tokens: int = 0
    finished: int = 0
    events: int = 0
    first_token_s: list[float] = msgspec.field(default_factory=list)
    inter_token_s: list[float] = msgspec.field(default_factory=list)
    request_s: list[float] = msgspec.field(default_factory=list)
    late_s: float = 0.0
    """Maximum delay between the due time and the send time of a request."""
    cpu_s: float = 0.0
    """CPU seconds of the client processes since they started."""
    error: str = ""


class Client:
    def __init__(self, plan: Plan, wire: Wire, number: int, readings: Readings) -> None:
        self.wire = wire
        self._plan = plan
        self._readings = readings
        self._source = random.Random(plan.seed * 1000 + number)
        self._start_s = plan.begin_s + plan.warm_s
        self._end_s = self._start_s + plan.window_s
        self._events = 0
        self._num_expected = 0
        self._last_s = 0.0
        self._interval_s = plan.total / plan.rate if plan.rate else 0.0
        self.due_s = plan.begin_s + (self._interval_s * number / plan.total if plan.rate else 0.0)
        self._is_first = True
        self.is_busy = False

    def send(self, now_s: float) -> None:
        """Sends the next request. The first request of each client in a closed loop has a random
        length, so that the clients do not stay synchronized."""
        self.is_busy = True
        plan = self._plan
        is_cut = self._is_first and not plan.rate and plan.protocol != "whole"
        self._num_expected = self._source.randint(1, plan.num_out) if is_cut else plan.num_out
        self._is_first = False
        self._events = 0
        if not plan.rate:
            self.due_s = now_s
        if self._start_s <= now_s < self._end_s:
            self._readings.late_s = max(self._readings.late_s, now_s - self.due_s)
        prompt = "".join(self._source.choices("0123456789", k=plan.num_in))
        self.wire.send(prompt, self._num_expected)

    def read(self) -> None:
        num_events, is_ended = self.wire.receive()
        now_s = time.monotonic()
        if num_events:
            self._count(num_events, now_s)
        if is_ended:
            self._finish(now_s)

    def _count(self, num_events: int, now_s: float) -> None:
        readings = self._readings
        if self._start_s <= now_s < self._end_s:
            readings.events += num_events
            readings.tokens += num_events
            if self._events == 0:
                readings.first_token_s.append(now_s - self.due_s)
            else:
                readings.inter_token_s.append(now_s - self._last_s)
            readings.inter_token_s += [0.0] * (num_events - 1)
        self._events += num_events
        self._last_s = now_s

    def _finish(self, now_s: float) -> None:
        """Counts the tokens that had no event, because their text came with the next token."""
        missing = self._num_expected - self._events
        if not 0 <= missing <= max(2, self._num_expected // 4):
            raise RuntimeError(
                f"a response of {self._num_expected} tokens had {self._events} events"
            )
        if self._start_s <= now_s < self._end_s:
            self._readings.finished += 1
            self._readings.tokens += missing
            self._readings.request_s.append(now_s - self.due_s)
        self.is_busy = False
        self.due_s += self._interval_s


def run(plan: Plan) -> Readings:
    readings = Readings()
    poll = select.epoll()
    clients: dict[int, Client] = {}
    for number in range(plan.first, plan.first + plan.clients):
        name = f"{plan.model}{number % plan.num_models}" if plan.num_models else plan.model
        wire = WIRES[plan.protocol](plan.port, name)
        clients[wire.fileno()] = Client(plan, wire, number, readings)
        poll.register(wire.fileno(), select.EPOLLIN)
    end_s = plan.begin_s + plan.warm_s + plan.window_s
    while (now_s := time.monotonic()) < end_s:
        next_s = end_s
        for client in clients.values():
            if not client.is_busy:
                if client.due_s <= now_s:
                    client.send(now_s)
                else:
                    next_s = min(next_s, client.due_s)
        for fd, _ in poll.poll(max(0.0, next_s - now_s)):
            clients[fd].read()
    readings.cpu_s = time.process_time()
    return readings


def measure(plan: Plan) -> Readings:
    """Runs the plan in several processes. Raises RuntimeError if a client failed."""
    plan.total = plan.clients
    shares = list(_shares(plan))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.stream_load"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
        )
        for _ in shares
    ]
    for process, share in zip(processes, shares, strict=True):
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(share) + b"\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    begin_s = time.monotonic() + START_S
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"%r\n" % begin_s)
        process.stdin.close()
    merged = Readings()
    for process in processes:
        assert process.stdout is not None
        text = process.stdout.read()
        process.wait()
        part = (
            msgspec.json.decode(text, type=Readings)
            if text
            else Readings(error=f"a client ended with status {process.returncode}")
        )
        if part.error:
            merged.error = part.error
        merged.tokens += part.tokens
        merged.finished += part.finished
        merged.events += part.events
        merged.cpu_s += part.cpu_s
        merged.late_s = max(merged.late_s, part.late_s)
        merged.first_token_s += part.first_token_s
        merged.inter_token_s += part.inter_token_s
        merged.request_s += part.request_s
    if merged.error:
        raise RuntimeError(merged.error)
    return merged


def _shares(plan: Plan) -> Iterator[Plan]:
    count = min(NUM_PROCESSES, plan.clients)
    first = 0
    for number in range(count):
        clients = plan.clients // count + (number < plan.clients % count)
        yield msgspec.structs.replace(plan, clients=clients, first=first)
        first += clients


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


_ROOT = Path(__file__).parents[1]


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.buffer.readline(), type=Plan)
    print("started", flush=True)
    plan.begin_s = float(sys.stdin.buffer.readline())
    try:
        readings = run(plan)
    except Exception as error:
        readings = Readings(error=f"{type(error).__name__}: {error}")
    print(json.dumps(msgspec.to_builtins(readings)))


if __name__ == "__main__":
    main()
