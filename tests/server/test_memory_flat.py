"""The memory of the server does not grow with the number of requests. `make soak` (bench/memory.py)
is the long version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.memory import grpc_request, send_grpc
from bench.process_tree import MIB, memory_bytes
from bench.raw_client import large_request, send_many, small_request
from tests.server.gates import eventually
from tests.server.harness import Server, naiad, process_tree

ALLOWED_BYTES = 12 * MIB


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with naiad([str(Path(__file__).parents[2] / "bench" / "repository")]) as one:
        yield one


def anonymous_bytes(server: Server) -> int:
    return memory_bytes(server.pid)["Anonymous"]


def test_small_requests_do_not_leak_memory(server: Server) -> None:
    send_many(server.http_port, small_request(), 2000)
    before = anonymous_bytes(server)
    send_many(server.http_port, small_request(), 20000)
    assert anonymous_bytes(server) - before < ALLOWED_BYTES


def test_small_grpc_requests_do_not_leak_memory(server: Server) -> None:
    message = grpc_request("add_sub", [1, 16], ["INPUT0", "INPUT1"])
    send_grpc(server, message, 500, 32)
    before = anonymous_bytes(server)
    send_grpc(server, message, 5000, 32)
    assert anonymous_bytes(server) - before < ALLOWED_BYTES


def test_large_requests_do_not_leak_memory(server: Server) -> None:
    """Sends and receives 200 MiB. The memory kept for reuse is limited by the requests in
    flight."""
    request = large_request(MIB)
    message = grpc_request("identity_fp32", [MIB // 4], ["INPUT0"])
    send_many(server.http_port, request, 40, depth=1)
    send_grpc(server, message, 40, 4)
    before = memory_bytes(server.pid)["Pss"]
    send_many(server.http_port, request, 200, depth=1)
    send_grpc(server, message, 200, 4)
    assert memory_bytes(server.pid)["Pss"] - before < 2 * ALLOWED_BYTES


def test_connections_do_not_leak_descriptors(server: Server) -> None:
    def open_files() -> int:
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in process_tree(server.pid))

    for _ in range(5):
        send_many(server.http_port, small_request(), 20, connections=20)
    before = open_files()
    for _ in range(20):
        send_many(server.http_port, small_request(), 20, connections=20)
    eventually(lambda: open_files() <= before + 20, "the connections are closed")
