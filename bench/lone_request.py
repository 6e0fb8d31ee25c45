"""Latency and CPU time of one client that sends one request at a time, for an earlier checkout and
this one.

    git worktree add /tmp/before COMMIT
    python -m bench.lone_request --before /tmp/before [--seconds 30] [--parts http grpc]

Both servers run next to each other and take turns every 200 requests, so that a busy machine slows
both alike. The client sends prepared bytes, so its own cost is small and the same for both. The
table has the median and the minimum over the turns; the last column is the quotient of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path

from bench.before_after import HERE, launch_checkout
from bench.compare import REPOSITORY
from bench.raw_client import small_request
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from tests.attacks.memory import WINDOW_UPDATE, call_data, call_head, connect, connect_grpc, frame
from tests.server.harness import Server, process_tree

TURN_REQUESTS = 200
MAX_WINDOW = (1 << 31) - 1
_DEFAULT_WINDOW = 65_535


def http_client(server: Server, stack: contextlib.ExitStack) -> Callable[[], None]:
    connection = _prepared(stack.enter_context(connect(server.http_port)))
    request = small_request()
    connection.sendall(request)
    size = len(connection.recv(1 << 16))

    def call() -> None:
        connection.sendall(request)
        received = len(connection.recv(1 << 16))
        if received != size:
            raise SystemExit(f"a response has {received} bytes, the first had {size}")

    return call


def grpc_client(server: Server, stack: contextlib.ExitStack) -> Callable[[], None]:
    connection = _prepared(stack.enter_context(connect_grpc(server.grpc_port, MAX_WINDOW)))
    room = struct.pack(">I", MAX_WINDOW - _DEFAULT_WINDOW)
    connection.sendall(frame(WINDOW_UPDATE, 0, 0, room))
    message = ModelInferRequest(model_name="add_sub")
    for name in ("INPUT0", "INPUT1"):
        message.inputs.add(name=name, datatype="FP32", shape=[1, 16])
        message.raw_input_contents.append(bytes(64))
    head, data = call_head(1), call_data(1, message.SerializeToString())
    next_id = 1

    def call() -> None:
        nonlocal next_id
        stream_id = struct.pack(">I", next_id)
        next_id += 2
        connection.sendall(head[:5] + stream_id + head[9:] + data[:5] + stream_id + data[9:])
        received = b""
        while b"grpc-status" not in received or stream_id not in received:
            received += connection.recv(1 << 16)

    return call


def _prepared(connection: socket.socket) -> socket.socket:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def cpu_us(pid: int) -> float:
    """The time that all threads of a process tree have run. Finer than the ticks of /proc/PID/stat,
    and without processes that have ended."""
    total_ns = 0
    for member in set(process_tree(pid)):
        for thread in os.listdir(f"/proc/{member}/task"):
            text = Path(f"/proc/{member}/task/{thread}/schedstat").read_text()
            total_ns += int(text.split()[0])
    return total_ns / 1000


PARTS = {"http": http_client, "grpc": grpc_client}


def measure(part: str, before: Path, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Returns the microseconds per request of each turn: latency, and CPU time of the server and
    its workers."""
    turns: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
    with contextlib.ExitStack() as stack:
        servers = {
            "before": launch_checkout(before, REPOSITORY),
            "after": launch_checkout(HERE, REPOSITORY),
        }
        for server in servers.values():
            stack.callback(server.stop)
        calls = {}
        for name, server in servers.items():
            server.wait_started()
            calls[name] = PARTS[part](server, stack)
            for _ in range(2000):
                calls[name]()
        end_s = time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            for name, call in calls.items():
                start_us, start_s = cpu_us(servers[name].pid), time.perf_counter()
                for _ in range(TURN_REQUESTS):
                    call()
                latency_us = (time.perf_counter() - start_s) * 1e6 / TURN_REQUESTS
                cost_us = (cpu_us(servers[name].pid) - start_us) / TURN_REQUESTS
                turns[name].append((latency_us, cost_us))
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the earlier checkout")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=30.0, help="time for each part")
    chosen = parser.parse_args()
    print("| add_sub, one client | before: median, minimum us | after | after / before |")
    print("|---|---:|---:|---:|", flush=True)
    for part in chosen.parts:
        turns = measure(part, chosen.before, chosen.seconds)
        for index, what in enumerate(("latency", "CPU time")):
            before, after = ([turn[index] for turn in turns[name]] for name in ("before", "after"))
            quotient = statistics.median(after) / statistics.median(before)
            print(
                f"| {part}, {what} | {statistics.median(before):.1f}, {min(before):.1f} "
                f"| {statistics.median(after):.1f}, {min(after):.1f} | {quotient:.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
