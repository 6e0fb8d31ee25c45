"""Requests that frontend processes send in bundles: each gets exactly one response and is counted
exactly once, whatever happens to the others of its bundle."""

from __future__ import annotations

import collections
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import eventually, pending
from tests.server.harness import Server, naiad, process_tree

CONFIG = """
backend: "identity"
max_batch_size: 16
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
dynamic_batching {{ {batching} }}
instance_group [ {{ kind: KIND_CPU count: {instances} }} ]
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay_ms}" }} }}
"""
LIMITED = "default_queue_policy { max_queue_size: 24 }"


def write_model(
    folder: Path, name: str, delay_ms: int, instances: int = 1, batching: str = ""
) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(
        CONFIG.format(delay_ms=delay_ms, instances=instances, batching=batching)
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "quick", 0, 2)
    write_model(folder, "slow", 400, 2)
    write_model(folder, "limited", 1000, batching=LIMITED)
    with naiad([str(folder)], ["--frontend-processes=2"]) as one:
        yield one


class Clients:
    """Many connections, each with at most one request under way. All requests are sent before the
    first response is read, so that a frontend receives many of them in one turn of its loop."""

    def __init__(self, server: Server, count: int) -> None:
        address = "127.0.0.1", server.http_port
        self.sockets = [socket.create_connection(address, timeout=60) for _ in range(count)]
        self.outcomes: collections.Counter[int] = collections.Counter()

    def send(self, model: str, first: int = 0) -> None:
        for number, sock in enumerate(self.sockets, first):
            body = json.dumps(
                {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, 1],
                             "data": [number]}]}
            )  # fmt: skip
            head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: "
            sock.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode())

    def receive(self, first: int = 0) -> None:
        """Counts the statuses. A response with status 200 must be the one to the connection's own
        request."""
        for number, sock in enumerate(self.sockets, first):
            status, body = read_response(sock)
            self.outcomes[status] += 1
            if status == 200:
                assert body["outputs"][0]["data"] == [number]

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def read_response(sock: socket.socket) -> tuple[int, Any]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < length:
        body += sock.recv(1 << 16)
    return int(head.split()[1]), json.loads(body)


def counts(server: Server, model: str) -> tuple[int, int]:
    """How many requests have succeeded and failed."""
    body = json.loads(server.get(f"/v2/models/{model}/stats")[1])
    stats = body["model_stats"][0]["inference_stats"]
    return stats["success"]["count"], stats["fail"]["count"]


def workers(server: Server, name: str) -> list[int]:
    """The workers of a model's instances, which are named after them."""
    return [
        pid
        for pid in process_tree(server.pid)
        if Path(f"/proc/{pid}/comm").read_text().startswith(f"{name}_")
    ]


def test_every_request_gets_its_own_response_and_is_counted_once(server: Server) -> None:
    clients = Clients(server, 64)
    for round in range(20):
        clients.send("quick", first=round)
        clients.receive(first=round)
    clients.close()
    assert clients.outcomes == {200: 64 * 20}
    assert counts(server, "quick") == (64 * 20, 0)
    text = server.get("/metrics", "metrics")[1].decode()
    assert 'nv_inference_request_success{model="quick",version="1"} 1280' in text
    assert 'nv_inference_count{model="quick",version="1"} 1280' in text


def test_a_killed_worker_fails_exactly_the_requests_that_it_had(server: Server) -> None:
    clients = Clients(server, 48)
    before = counts(server, "slow")
    clients.send("slow")
    eventually(lambda: pending(server, "slow") > 0, "both instances are busy")
    victim = workers(server, "slow")[0]
    os.kill(victim, signal.SIGKILL)
    clients.receive()
    clients.close()
    assert sum(clients.outcomes.values()) == 48
    assert clients.outcomes[500] <= 16
    assert set(clients.outcomes) <= {200, 500}
    success, failure = counts(server, "slow")
    assert success - before[0] == clients.outcomes[200]
    assert failure - before[1] == clients.outcomes[500]


def test_clients_that_go_away_leave_the_others_of_their_bundles(server: Server) -> None:
    clients = Clients(server, 48)
    clients.send("quick")
    clients.receive()  # all connections are in the frontends by now
    before = counts(server, "slow")
    clients.send("slow")
    gone = clients.sockets[::3]
    for sock in gone:
        sock.close()
    numbers = [number for number in range(48) if number % 3]
    for number in numbers:
        status, body = read_response(clients.sockets[number])
        assert (status, body["outputs"][0]["data"]) == (200, [number])
    clients.close()
    eventually(lambda: pending(server, "slow") == 0, "nothing waits")
    # A request that was not read before its client had gone is not counted at all.
    success, failure = counts(server, "slow")
    assert len(numbers) <= success - before[0]
    assert success - before[0] + failure - before[1] <= 48


def test_the_limit_of_the_queue_holds_for_bundles(server: Server) -> None:
    clients = Clients(server, 60)
    clients.send("limited")
    clients.receive()
    clients.close()
    assert sum(clients.outcomes.values()) == 60
    # A batch of up to 16 was executed while up to 24 waited; the second batch leaves after 1 s.
    assert 24 + 1 <= clients.outcomes[200] <= 24 + 16
    assert clients.outcomes[503] == 60 - clients.outcomes[200]
    assert counts(server, "limited") == (clients.outcomes[200], clients.outcomes[503])
