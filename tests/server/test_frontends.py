"""Several frontend processes: what clients see is what one process would do, and a process that
dies or hangs takes only its own connections with it."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.certificates import make_certificates
from tests.server.gates import Hold, eventually, pending
from tests.server.harness import (
    Server,
    frontends,
    launchers,
    naiad,
    process_state,
    process_tree,
    wait_gone,
)
from tests.server.model_folder import Control, write_model

FLAGS = ("--frontend-processes=2", "--model-control-mode=explicit", "--load-model=*")
HUNG_LIMIT_S = 60.0
"""More than the server needs to notice that a frontend hangs, on a busy machine."""
ANY = json.dumps(
    {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]}
).encode()


def client_ports(pid: int, port: int) -> set[int]:
    """The ports of the clients whose connections to `port` a process has."""
    links = set()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            links.add(os.readlink(f"/proc/{pid}/fd/{entry}"))
    ports = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[place].rpartition(":")[2], 16) for place in (1, 2))
        if local == port and fields[3] == "01" and f"socket:[{fields[9]}]" in links:
            ports.add(remote)
    return ports


def num_sockets(pid: int, port: int) -> int:
    """The connections of a process whose local port is this one."""
    return len(client_ports(pid, port))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path, "word", "first")
    write_model(tmp_path, "other", "other")
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with naiad([str(folder)], FLAGS) as one:
        eventually(lambda: len(frontends(one)) == 2, "both frontends run")
        yield one


Connect: TypeAlias = "Callable[[Server, int], list[Client]]"


class Client:
    """One kept-alive connection."""

    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        self.connection.request(method, path, body)
        response = self.connection.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None

    def infer(self, model: str = "word") -> str:
        status, body = self.request("POST", f"/v2/models/{model}/infer", ANY)
        assert status == 200, body
        return str(body["outputs"][0]["data"][0]).split()[0]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens connections, which are closed after the test."""
    opened: list[Client] = []

    def connect(server: Server, count: int) -> list[Client]:
        clients = [Client(server) for _ in range(count)]
        opened.extend(clients)
        return clients

    yield connect
    for client in opened:
        client.close()


class Load:
    """Clients that send requests until they are stopped, and count what they see. A client whose
    connection breaks opens another one."""

    def __init__(self, server: Server, num_clients: int = 8, model: str = "word") -> None:
        self._server = server
        self._model = model
        self._is_stopped = threading.Event()
        self._lock = threading.Lock()
        self.num_ok = 0
        self.num_broken = 0
        self.errors: collections.Counter[str] = collections.Counter()
        self._threads = [threading.Thread(target=self._run) for _ in range(num_clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        client = Client(self._server)
        while not self._is_stopped.is_set():
            try:
                status, body = client.request("POST", f"/v2/models/{self._model}/infer", ANY)
            except (OSError, http.client.HTTPException):
                client.close()
                client = Client(self._server)
                with self._lock:
                    self.num_broken += 1
                continue
            with self._lock:
                if status == 200:
                    self.num_ok += 1
                else:
                    self.errors[f"{status} {body}"] += 1
        client.close()

    def wait_for(self, num_more: int) -> None:
        target = self.num_ok + num_more
        eventually(lambda: self.num_ok >= target, f"{num_more} more responses")


def success_count(server: Server, model: str = "word") -> int:
    body = json.loads(server.get(f"/v2/models/{model}/stats")[1])
    return int(body["model_stats"][0]["inference_stats"]["success"]["count"])


def test_the_environment_chooses_the_number_of_frontends(folder: Path) -> None:
    """`make test-frontends` relies on it."""
    with naiad([str(folder)], environment={"NAIAD_FRONTEND_PROCESSES": "2"}) as one:
        eventually(lambda: len(frontends(one)) == 2, "both frontends run")


def test_counts_of_two_frontends_are_sums(server: Server) -> None:
    with Load(server) as load:
        load.wait_for(500)
    assert not load.errors
    assert load.num_broken == 0
    assert success_count(server) == load.num_ok


class Flood:
    """A thread that sends requests over the connection of a client as fast as it can, many before
    it reads a response, and counts the responses."""

    MANY = 64
    OK = b"HTTP/1.1 200 OK\r\n"

    def __init__(self, client: Client, is_stopped: threading.Event) -> None:
        self._sock = client.connection.sock
        self._is_stopped = is_stopped
        self.num_ok = 0
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        head = f"POST /v2/models/word/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(ANY)}"
        requests = (head.encode() + b"\r\n\r\n" + ANY) * self.MANY
        while not self._is_stopped.is_set():
            self._sock.sendall(requests)
            data = b""
            while data.count(b"}]}") < self.MANY:
                received = self._sock.recv(1 << 20)
                assert received, "the connection ended"
                data += received
            self.num_ok += data.count(self.OK)


def test_work_moves_to_the_frontend_that_has_none(server: Server, connect: Connect) -> None:
    clients = connect(server, 12)
    for client in clients:
        client.infer()
    first, second = frontends(server)
    ports = {client.connection.sock.getsockname()[1]: client for client in clients}
    hot = client_ports(first, server.http_port)
    is_stopped = threading.Event()
    floods = [Flood(ports[port], is_stopped) for port in hot]
    try:
        eventually(
            lambda: bool(hot & client_ports(second, server.http_port)),
            "the other frontend serves some of the clients that send much",
            HUNG_LIMIT_S,
        )
    finally:
        is_stopped.set()
        for flood in floods:
            flood.thread.join()
    assert success_count(server) == 12 + sum(flood.num_ok for flood in floods)
    assert hot & client_ports(first, server.http_port), "it keeps its part"
    for client in clients:
        assert client.infer() == "first"


def test_both_frontends_serve_connections(server: Server, connect: Connect) -> None:
    clients = connect(server, 20)
    for client in clients:
        client.infer()
    numbers = [num_sockets(pid, server.http_port) for pid in frontends(server)]
    # A connection that a frontend reports as it arrives counts twice for a turn.
    assert sum(numbers) == 20
    assert min(numbers) >= 8
    eventually(
        lambda: (
            'naiad_connections{protocol="http"} 20' in server.get("/metrics", "metrics")[1].decode()
        ),
        "the metrics count the connections of both",
    )
    for client in clients:
        client.close()
    eventually(
        lambda: (
            'naiad_connections{protocol="http"} 0' in server.get("/metrics", "metrics")[1].decode()
        ),
        "the server sees that the connections have ended",
    )


def test_few_grpc_connections_are_spread(server: Server) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(server.grpc, options=options) for _ in range(4)]
    for channel in channels:
        grpc.channel_ready_future(channel).result(timeout=30)
    numbers = [num_sockets(pid, server.grpc_port) for pid in frontends(server)]
    assert sum(numbers) == 4
    assert min(numbers) >= 1
    for channel in channels:
        channel.close()


def test_many_idle_connections_are_spread(server: Server, connect: Connect) -> None:
    count = int(os.environ.get("NAIAD_IDLE_CONNECTIONS", "1000")) // 2
    idle = [socket.create_connection(("127.0.0.1", server.grpc_port)) for _ in range(count)]
    clients = connect(server, count)
    for client in clients:
        assert client.infer() == "first"

    def are_spread(port: int) -> bool:
        """A connection counts twice for a moment while a frontend reports it."""
        numbers = [num_sockets(pid, port) for pid in frontends(server)]
        return sum(numbers) == count and min(numbers) >= 0.48 * count

    for port in (server.grpc_port, server.http_port):
        eventually(lambda port=port: are_spread(port), "each frontend has about half of them")  # type: ignore[misc]
    assert {client.infer() for client in clients[::50]} == {"first"}
    assert success_count(server) == count + len(clients[::50])
    for sock in idle:
        sock.close()


def test_a_connection_may_send_requests_of_every_kind(server: Server) -> None:
    """It moves between processes; after some moves it stays in the server process."""
    client = Client(server)
    for number in range(15):
        assert client.infer() == "first"
        assert client.infer() == "first"
        status, body = client.request("GET", "/v2/models/word/stats")
        assert status == 200
        assert body["model_stats"][0]["inference_stats"]["success"]["count"] == 2 * number + 2
        assert client.request("GET", "/v2/health/ready")[0] == 200
    status, body = client.request("POST", "/v2/models/missing/infer", ANY)
    assert (status, body) == (
        404,
        {"error": "Request for unknown model: 'missing' is not found"},
    )
    client.close()


def test_pipelined_requests_of_every_kind_get_their_responses_in_order(server: Server) -> None:
    infer = (
        b"POST /v2/models/word/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    )
    infer = infer % (len(ANY), ANY)
    metadata = b"GET /v2/models/word HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as sock:
        sock.sendall(infer + metadata + infer + infer + metadata + last)
        data = b""
        while chunk := sock.recv(1 << 16):
            data += chunk
    kinds = [
        "infer" if b'"outputs":[{"name":"WORD","datatype":"BYTES","shape":[1],"data"' in part else
        "metadata" if b'"versions"' in part else "server"
        for part in data.split(b"HTTP/1.1 200 OK")[1:]
    ]  # fmt: skip
    assert kinds == ["infer", "metadata", "infer", "infer", "metadata", "server"]


def test_grpc_calls_of_every_kind_share_a_connection(server: Server) -> None:
    client = grpc_client.InferenceServerClient(server.grpc)
    assert client.is_server_live()
    assert client.get_model_metadata("word").name == "word"
    tensor = grpc_client.InferInput("ANY", [1], "INT32")
    tensor.set_data_from_numpy(np.zeros(1, np.int32))
    for _ in range(3):
        assert client.infer("word", [tensor]).as_numpy("WORD")[0].startswith(b"first")
    results: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: results.put((result, error)))
    for _ in range(3):
        client.async_stream_infer("word", [tensor])
    for _ in range(3):
        result, error = results.get(timeout=30)
        assert error is None
        assert result.as_numpy("WORD")[0].startswith(b"first")
    client.stop_stream()
    assert client.get_inference_statistics("word").model_stats[0].inference_count == 6
    with pytest.raises(Exception, match="Request for unknown model: 'missing' is not found"):
        client.infer("missing", [tensor])
    client.close()


def test_large_tensors_travel_through_all_processes(tmp_path: Path) -> None:
    model = tmp_path / "same" / "1"
    model.mkdir(parents=True)
    (tmp_path / "same" / "config.pbtxt").write_text(
        'backend: "identity"\n'
        'input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]\n'
    )
    data = np.arange(1 << 20, dtype=np.float32)
    with naiad([str(tmp_path)], ["--frontend-processes=2"]) as server:
        client = grpc_client.InferenceServerClient(server.grpc)
        tensor = grpc_client.InferInput("INPUT0", list(data.shape), "FP32")
        tensor.set_data_from_numpy(data)
        for _ in range(4):
            assert np.array_equal(client.infer("same", [tensor]).as_numpy("OUTPUT0"), data)
        client.close()
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "INPUT0",
                        "datatype": "FP32",
                        "shape": list(data.shape),
                        "parameters": {"binary_data_size": data.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
        for _ in range(4):
            connection.request(
                "POST",
                "/v2/models/same/infer",
                header + data.tobytes(),
                {"Inference-Header-Content-Length": str(len(header))},
            )
            response = connection.getresponse()
            body = response.read()
            assert response.status == 200, body[:500]
            length = int(response.headers["Inference-Header-Content-Length"])
            assert body[length:] == data.tobytes()
        connection.close()


def test_a_killed_frontend_takes_only_its_own_connections(server: Server, connect: Connect) -> None:
    clients = connect(server, 8)
    for client in clients:
        client.infer()
    killed = frontends(server)[0]
    with Load(server) as load:
        load.wait_for(100)
        os.kill(killed, signal.SIGKILL)
        load.wait_for(500)
        server.wait_for_line(f"frontend process {killed} is gone")
        eventually(
            lambda: len(frontends(server)) == 2 and killed not in frontends(server),
            "the frontend is replaced",
        )
        load.wait_for(500)
    assert not load.errors
    assert 1 <= load.num_broken <= 8
    outcomes = []
    for client in clients:
        try:
            outcomes.append(client.infer() == "first")
        except (OSError, http.client.HTTPException):
            outcomes.append(False)
    assert sorted(outcomes) == [False] * 4 + [True] * 4
    expected = load.num_ok + len(clients) + 4
    assert expected <= success_count(server) <= expected + load.num_broken


def test_requests_of_a_killed_frontend_leave_the_queue(tmp_path: Path, connect: Connect) -> None:
    hold = Hold(tmp_path)
    write_model(tmp_path, "slow", "slow", execute=hold.statement)
    with naiad([str(tmp_path)], ["--frontend-processes=2"]) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        clients = connect(server, 6)
        for client in clients:
            client.connection.request("POST", "/v2/models/slow/infer", ANY)
        eventually(lambda: pending(server, "slow") == 5, "one is executed, the others wait")
        os.kill(frontends(server)[0], signal.SIGKILL)
        eventually(lambda: pending(server, "slow") <= 3, "those of the killed frontend are gone")
        hold.release()
        outcomes = []
        for client in clients:
            try:
                outcomes.append(client.connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                outcomes.append(0)
        assert sorted(outcomes) == [0, 0, 0, 200, 200, 200]
        body = json.loads(server.get("/v2/models/slow/stats")[1])
        stats = body["model_stats"][0]["inference_stats"]
        # One of the three may have been executing.
        assert stats["success"]["count"] + stats["fail"]["count"] == 6
        assert stats["success"]["count"] <= 4


def test_a_stopped_frontend_is_noticed_and_replaced(server: Server, connect: Connect) -> None:
    clients = connect(server, 4)
    for client in clients:
        client.infer()
    stopped = frontends(server)[0]
    os.kill(stopped, signal.SIGSTOP)
    server.wait_for_line(f"frontend process {stopped} is gone", HUNG_LIMIT_S)
    assert not wait_gone([stopped])
    eventually(lambda: len(frontends(server)) == 2, "the frontend is replaced")
    outcomes = []
    for client in clients:
        try:
            outcomes.append(client.infer() == "first")
        except (OSError, http.client.HTTPException):
            outcomes.append(False)
    assert sorted(outcomes) == [False, False, True, True]
    with Load(server) as load:
        load.wait_for(200)
    assert load.num_broken == 0


def test_a_frontend_that_stops_under_load_holds_up_only_its_own_connections(
    server: Server,
) -> None:
    stopped = frontends(server)[0]
    with Load(server) as load:
        load.wait_for(100)
        os.kill(stopped, signal.SIGSTOP)
        load.wait_for(500)
        server.wait_for_line(f"frontend process {stopped} is gone", HUNG_LIMIT_S)
        assert not wait_gone([stopped])
        eventually(lambda: len(frontends(server)) == 2, "the frontend is replaced")
        load.wait_for(500)
    assert not load.errors
    assert 1 <= load.num_broken <= 8
    assert load.num_ok <= success_count(server) <= load.num_ok + load.num_broken


def test_a_dead_launcher_leaves_a_server_that_serves_alone(server: Server) -> None:
    (launcher,) = launchers(server)
    processes = frontends(server)
    with Load(server) as load:
        load.wait_for(100)
        os.kill(launcher, signal.SIGKILL)
        server.wait_for_line("the server process serves all connections from now on")
        assert not wait_gone(processes)
        eventually(lambda: load.num_broken >= 8, "every connection has ended")
        num_broken = load.num_broken
        load.wait_for(500)
        client = grpc_client.InferenceServerClient(server.grpc)
        tensor = grpc_client.InferInput("ANY", [1], "INT32")
        tensor.set_data_from_numpy(np.zeros(1, np.int32))
        assert client.infer("other", [tensor]).as_numpy("WORD")[0].startswith(b"other")
        client.close()
    assert not load.errors
    assert load.num_broken == num_broken
    assert load.num_ok <= success_count(server) <= load.num_ok + load.num_broken
    assert Control(server).unload("other") == (200, "")
    assert server.stop() == 0


def test_a_killed_worker_fails_only_its_own_requests(server: Server) -> None:
    pid = Control(server).pid("word")
    with Load(server) as load:
        load.wait_for(100)
        os.kill(pid, signal.SIGKILL)
        load.wait_for(300)
    assert load.num_broken == 0
    assert sum(load.errors.values()) <= 8
    assert success_count(server) == load.num_ok + 1


def test_a_stopped_worker_holds_up_only_its_own_requests(server: Server, connect: Connect) -> None:
    pid = Control(server).pid("word")
    held, *others = connect(server, 5)
    assert held.infer() == "first"
    os.kill(pid, signal.SIGSTOP)
    try:
        held.connection.request("POST", "/v2/models/word/infer", ANY)
        for _ in range(10):
            assert {client.infer("other") for client in others} == {"other"}
    finally:
        os.kill(pid, signal.SIGCONT)
    response = held.connection.getresponse()
    assert (response.status, b'"first ' in response.read()) == (200, True)
    assert success_count(server) == 3
    assert success_count(server, "other") == 40


def test_a_reload_under_load_reaches_every_process(
    server: Server, folder: Path, connect: Connect
) -> None:
    clients = connect(server, 6)
    assert {client.infer() for client in clients} == {"first"}
    with Load(server, 4, "other") as load:
        for number in range(5):
            write_model(folder, "word", f"word{number}")
            assert Control(server).load("word") == (200, "")
            assert {client.infer() for client in clients} == {f"word{number}"}
        assert Control(server).unload("word") == (200, "")
        for client in clients:
            status, body = client.request("POST", "/v2/models/word/infer", ANY)
            assert status == 404, body
        assert Control(server).load("word") == (200, "")
        assert {client.infer() for client in clients} == {"word4"}
    assert not load.errors
    assert load.num_broken == 0
    assert success_count(server, "other") == load.num_ok


def test_the_death_of_the_server_ends_its_frontends(server: Server) -> None:
    """Clients see what they see when one process dies: their connections end without a response
    that would say that a request has not been executed."""
    pids = [pid for pid in process_tree(server.pid) if pid != server.pid]
    with Load(server) as load:
        load.wait_for(100)
        os.kill(server.pid, signal.SIGKILL)
        assert not wait_gone(pids)
        eventually(lambda: load.num_broken >= 8, "every connection has ended")
    assert not load.errors


def stop_and_continue(server: Server, pause_s: float) -> None:
    """Stops the server process for a time under load, and looks at what its clients see."""
    processes = frontends(server)
    clients = [Client(server) for _ in range(4)]
    for client in clients:
        client.infer()
    with Load(server) as load:
        load.wait_for(100)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            eventually(lambda: process_state(server.pid) == "T", "the server has stopped")
            for client in clients:
                client.connection.request("POST", "/v2/models/word/infer", ANY)
            time.sleep(pause_s)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        for client in clients:
            assert client.connection.getresponse().read().startswith(b'{"model_name":"word"')
        load.wait_for(500)
    for client in clients:
        client.close()
    assert (load.num_broken, load.errors) == (0, {})
    assert success_count(server) == load.num_ok + 2 * len(clients)
    assert frontends(server) == processes


def test_a_server_process_that_was_stopped_loses_nothing(server: Server) -> None:
    stop_and_continue(server, 0.5)


@pytest.mark.slow
def test_a_server_process_that_was_stopped_for_long_keeps_its_frontends(server: Server) -> None:
    """Longer than a frontend may take to respond."""
    stop_and_continue(server, 15.0)


def test_requests_in_flight_are_finished_when_the_server_stops(
    tmp_path: Path, connect: Connect
) -> None:
    hold = Hold(tmp_path)
    write_model(tmp_path, "slow", "slow", execute=hold.statement)
    with naiad([str(tmp_path)], ["--frontend-processes=2"]) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        pids = process_tree(server.pid)
        clients = connect(server, 3)
        for client in clients:
            client.connection.request("POST", "/v2/models/slow/infer", ANY)
        eventually(lambda: pending(server, "slow") == 2, "one is executed, two wait")
        server.process.send_signal(signal.SIGTERM)
        eventually(
            lambda: any("Timeout 30: Found" in line for line in server.lines), "the server stops"
        )
        hold.release()
        assert [client.connection.getresponse().status for client in clients] == [200] * 3
        assert server.wait_exit() == 0
        assert not wait_gone(pids)


def test_tls_connections_send_requests_of_every_kind(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "certificates"
    place.mkdir()
    certificates = make_certificates(place)
    flags = [
        "--frontend-processes=2",
        "--model-control-mode=explicit",
        "--load-model=word",
        "--http-use-ssl=true",
        f"--http-server-cert={certificates.path('server.pem')}",
        f"--http-server-key={certificates.path('server.key')}",
    ]
    with naiad([str(folder)], flags) as server:
        context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        client = Client(server)
        client.connection = http.client.HTTPSConnection(
            "127.0.0.1", server.http_port, timeout=60, context=context
        )
        for _ in range(5):
            assert client.infer() == "first"
        assert client.request("GET", "/v2/models/word")[0] == 200
        for _ in range(5):
            assert client.infer() == "first"
        client.close()
        eventually(
            lambda: (
                'naiad_connections{protocol="http"} 0'
                in server.get("/metrics", "metrics")[1].decode()
            ),
            "the server sees that the connection has ended",
        )


def test_host_policies_pin_frontends(folder: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    flags = [
        "--frontend-processes=2",
        f"--host-policy=frontend,cpu-cores={cores[0]}",
        f"--host-policy=frontend_1,cpu-cores={cores[-1]}",
    ]
    with naiad([str(folder)], flags) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        pinned = sorted(list(os.sched_getaffinity(pid)) for pid in frontends(server))
        assert pinned == [[cores[0]], [cores[-1]]]
        assert sorted(os.sched_getaffinity(server.pid)) == cores
        client = Client(server)
        assert client.infer() == "first"
        client.close()


def test_two_more_frontends_need_little_memory(server: Server, folder: Path) -> None:
    def pss_bytes(one: Server) -> int:
        total = 0
        for pid in process_tree(one.pid):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(text.partition("Pss:")[2].split()[0]) * 1024
        return total

    with naiad([str(folder)], ["--frontend-processes=4"]) as four:
        eventually(lambda: len(frontends(four)) == 4, "all frontends run")
        more = pss_bytes(four) - pss_bytes(server)
    assert more <= 2 * 15e6
