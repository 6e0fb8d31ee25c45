"""`naiad router` in front of real servers: stock clients, and faults under load."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from naiad.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.attacks.router_kills import Load, attack
from tests.certificates import make_certificates
from tests.server.gates import HttpCall, eventually
from tests.server.harness import free_ports, naiad_command, naiad_environment
from tests.server.router_fleet import Fleet, fleet, infer_body, read_outputs, write_repository

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("router") / "repository")


@pytest.fixture(scope="module")
def pair(repository: Path) -> Iterator[Fleet]:
    """Two replicas that no test harms for good."""
    with fleet(repository, "a", "b") as one:
        yield one


def ask(one: Fleet, value: int, model: str = "plus_one", **parameters: object) -> tuple[int, str]:
    status, body = one.router.post(f"/v2/models/{model}/infer", infer_body(value, **parameters))
    assert status == 200, body
    return read_outputs(body)


def grpc_input(value: int) -> list[Any]:
    tensor = grpc_client.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], np.int32))
    return [tensor]


# Stock clients.


def test_both_replicas_serve(pair: Fleet) -> None:
    served = Counter(ask(pair, number)[1] for number in range(20))
    assert served == {"a": 10, "b": 10}


def test_tritonclient_over_http(pair: Fleet) -> None:
    client = http_client.InferenceServerClient(pair.router.http)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plus_one")
    assert client.get_model_metadata("plus_one")["name"] == "plus_one"
    assert client.get_model_config("plus_one")["backend"] == "python"
    assert {row["name"] for row in client.get_model_repository_index()} == {
        "plus_one",
        "slow",
        "sum",
        "numbers",
    }
    tensor = http_client.InferInput("X", [1], "INT32")
    tensor.set_data_from_numpy(np.array([41], np.int32))  # binary data
    assert client.infer("plus_one", [tensor]).as_numpy("Y")[0] == 42
    with pytest.raises(InferenceServerException, match="unknown model: 'nope' is not found"):
        client.infer("nope", [tensor])
    client.close()


def test_tritonclient_over_grpc(pair: Fleet) -> None:
    client = grpc_client.InferenceServerClient(pair.router.grpc)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plus_one")
    assert client.get_server_metadata().name
    assert client.get_model_metadata("plus_one").name == "plus_one"
    assert client.get_model_config("plus_one").config.backend == "python"
    assert len(client.get_model_repository_index().models) == 4
    served = Counter(
        client.infer("plus_one", grpc_input(number)).as_numpy("WHO")[0] for number in range(20)
    )
    assert served == {b"a": 10, b"b": 10}
    with pytest.raises(InferenceServerException, match="unknown model: 'nope' is not found"):
        client.infer("nope", grpc_input(1))
    wrong = grpc_client.InferInput("Z", [1], "INT32")
    wrong.set_data_from_numpy(np.array([1], np.int32))
    with pytest.raises(InferenceServerException, match="unexpected inference input"):
        client.infer("plus_one", [wrong])
    with pytest.raises(InferenceServerException, match="does not pass on"):
        client.load_model("plus_one")
    with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
        client.infer("slow", grpc_input(1), client_timeout=0.1)
    client.close()


class StreamClient:
    """A tritonclient stream with its responses in a queue."""

    def __init__(self, address: str) -> None:
        self.client = grpc_client.InferenceServerClient(address)
        self.responses: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()
        self.client.start_stream(lambda result, error: self.responses.put((result, error)))

    def send(self, model: str, value: int, **options: Any) -> None:
        self.client.async_stream_infer(model, grpc_input(value), **options)

    def next(self) -> tuple[int, str]:
        result, error = self.responses.get(timeout=60)
        assert error is None, error
        return int(result.as_numpy("Y")[0]), result.as_numpy("WHO")[0].decode()

    def close(self) -> None:
        self.client.stop_stream()
        self.client.close()


def test_a_stream_of_decoupled_responses(pair: Fleet) -> None:
    stream = StreamClient(pair.router.grpc)
    stream.send("numbers", 30)
    assert [stream.next()[0] for _ in range(30)] == list(range(30))
    stream.send("plus_one", 1)
    assert stream.next()[0] == 2
    stream.send("nope", 1, request_id="r-7")
    _, error = stream.responses.get(timeout=60)
    assert "unknown model: 'nope'" in str(error)
    stream.send("plus_one", 2)  # the stream goes on
    assert stream.next()[0] == 3
    stream.close()


def test_an_event_stream(pair: Fleet) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", pair.router.http_port, timeout=60)
    connection.request("POST", "/v2/models/numbers/generate_stream", json.dumps({"X": 20}))
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = [line for line in response.read().split(b"\n\n") if line]
    assert [json.loads(event.removeprefix(b"data: "))["Y"] for event in events] == list(range(20))
    connection.close()


def test_sequences_stay_with_their_replica(pair: Fleet) -> None:
    used: dict[int, set[str]] = {}
    for step in range(4):
        for number in range(101, 117):
            total, who = ask(
                pair,
                step,
                "sum",
                sequence_id=number,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            assert total == sum(range(step + 1))
            used.setdefault(number, set()).add(who)
    assert all(len(names) == 1 for names in used.values())
    assert set.union(*used.values()) == {"a", "b"}


def test_sequences_of_one_stream_stay_with_their_replicas(pair: Fleet) -> None:
    stream = StreamClient(pair.router.grpc)
    used: dict[int, set[str]] = {}
    for step in range(4):
        for number in range(201, 213):
            stream.send(
                "sum",
                step,
                sequence_id=number,
                sequence_start=step == 0,
                sequence_end=step == 3,
            )
            total, who = stream.next()
            assert total == sum(range(step + 1))
            used.setdefault(number, set()).add(who)
    assert all(len(names) == 1 for names in used.values())
    assert set.union(*used.values()) == {"a", "b"}
    stream.close()


def test_drains_a_replica(pair: Fleet) -> None:
    call = HttpCall(pair.router, "/v2/models/slow/infer", infer_body(1))
    assert pair.router.post("/router/replicas/a/drain", b"")[0] == 200
    try:
        assert {ask(pair, number)[1] for number in range(10)} == {"b"}
        assert call.response()[0] == 200
    finally:
        pair.router.post("/router/replicas/a/resume", b"")
    assert {ask(pair, number)[1] for number in range(10)} == {"a", "b"}


def test_metrics_are_those_of_replicas(pair: Fleet) -> None:
    ask(pair, 1)
    page = pair.router.get("/metrics", "metrics")[1].decode()
    assert 'naiad_router_replica_ready{replica="a"} 1' in page
    assert 'naiad_router_model_responses_total{model="plus_one",replica="b"}' in page


# Faults.


def test_prometheus_finds_the_replicas_by_the_router(pair: Fleet) -> None:
    rows = json.loads(pair.router.get("/router/targets")[1])
    assert {row["labels"]["replica"] for row in rows} == {"a", "b"}
    for row in rows:
        [target] = row["targets"]
        with urllib.request.urlopen(f"http://{target}/metrics", timeout=60) as response:
            assert b"nv_inference_count" in response.read()
    [node] = json.loads(pair.router.get("/router/nodes")[1])["nodes"]
    assert (node["name"], node["ready"]) == ("127.0.0.1", 2)


def test_health_is_watched_over_grpc(pair: Fleet, repository: Path) -> None:
    one = Fleet(repository)
    one._ports = {"gone": free_ports(), **pair._ports}
    one.route(one.flag("gone"))
    channel = grpc.insecure_channel(one.router.grpc)
    stub = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    try:
        watches = [stub(HealthCheckRequest(service=name)) for name in ("", "plus_one")]
        for watch in watches:
            assert next(watch).status == HealthCheckResponse.NOT_SERVING
        spec = {"url": f"http://{pair.servers['a'].http}", "grpc": pair.servers["a"].grpc}
        assert one.router.post("/router/replicas", {**spec, "name": "a"})[0] == 201
        for watch in watches:
            assert next(watch).status == HealthCheckResponse.SERVING
        one.router.signal(signal.SIGTERM)
        for watch in watches:
            assert next(watch).status == HealthCheckResponse.NOT_SERVING
            with pytest.raises(grpc.RpcError) as caught:
                next(watch)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        channel.close()
        one.stop()


def test_loses_nothing_when_replicas_are_killed(repository: Path) -> None:
    with fleet(repository, "a", "b") as one:
        outcome = attack(one, num_requests=600, num_kills=3, seed=5)
    assert outcome.failures == []
    assert set(outcome.served) == {"a", "b"}


def test_a_stream_whose_replica_dies_breaks_off_and_is_not_sent_again(repository: Path) -> None:
    with fleet(repository, "a") as one:
        stream = StreamClient(one.router.grpc)
        stream.send("numbers", 1000)
        assert stream.next()[0] == 0
        connection = http.client.HTTPConnection("127.0.0.1", one.router.http_port, timeout=60)
        connection.request("POST", "/v2/models/numbers/generate_stream", json.dumps({"X": 1000}))
        response = connection.getresponse()
        assert response.readline().startswith(b"data:")
        one.kill("a")
        with pytest.raises(http.client.IncompleteRead):
            response.read()
        connection.close()
        error = None
        while error is None:
            _, error = stream.responses.get(timeout=60)
        assert "replica 'a': the replica closed the connection" in str(error)
        stream.close()
        page = one.router.get("/metrics", "metrics")[1].decode()
        assert "naiad_router_broken_streams_total 2" in page
        assert "naiad_router_retries_total 0" in page


class StreamLoad:
    """Streams with four requests on their way each, and HTTP clients, until `stop`."""

    def __init__(self, one: Fleet, num_streams: int) -> None:
        self.failures: list[str] = []
        self.served: Counter[str] = Counter()
        self._address = one.router.grpc
        self._is_stopping = False
        self._threads = [threading.Thread(target=self._run) for _ in range(num_streams)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        stream = StreamClient(self._address)
        try:
            for value in range(4):
                stream.send("plus_one", value)
            value, waiting = 4, list(range(4))
            while waiting:
                number, who = stream.next()
                waiting.remove(number - 1)
                self.served[who] += 1
                if not self._is_stopping:
                    stream.send("plus_one", value)
                    waiting.append(value)
                    value += 1
        except (AssertionError, ValueError, queue.Empty) as error:
            self.failures.append(f"{type(error).__name__}: {error}")
        stream.close()

    def stop(self) -> None:
        self._is_stopping = True
        for thread in self._threads:
            thread.join(120)


@pytest.mark.parametrize("num_frontends", [1, 2])
def test_a_rolling_restart_loses_no_stream(repository: Path, num_frontends: int) -> None:
    """FOUND G16: with the default flags some requests of streams were lost."""
    flags = (f"--frontend-processes={num_frontends}",)
    one = Fleet(repository)
    try:
        for name in ("a", "b"):
            one.start(name, flags=flags)
        one.route(one.flag("a"), one.flag("b"))
        for name in ("a", "b", "a"):
            one.wait_ready("a", "b")
            # Streams stay where they are, so new ones find the new server.
            stop_under_load(one, name)
            one.start(name, flags=flags).wait_started()
    finally:
        one.stop()


def stop_under_load(one: Fleet, name: str) -> None:
    load = StreamLoad(one, 6)
    try:
        eventually(lambda: min(load.served["a"], load.served["b"]) > 100, "no responses")
        assert one.stop_server(name) == 0
        load.served.clear()
        eventually(lambda: load.served.total() > 100, "requests do not go on")
    finally:
        load.stop()
    assert load.failures == []


def test_a_stopped_replica_loses_its_requests_to_the_other(repository: Path) -> None:
    config = repository.parent / "stopped.toml"
    config.write_text("[health]\ninterval_s = 0.3\ntimeout_s = 0.5\n")
    with fleet(repository, "a", "b", flags=[f"--config={config}"]) as one:
        load = Load(one.router.http_port, one.router.grpc_port, 200)
        eventually(lambda: load.num_sent > 50, "no requests")
        os.killpg(one.servers["a"].pid, signal.SIGSTOP)
        eventually(lambda: one.replicas()["a"]["health"] == "down", "a is not down")
        sent = load.num_sent
        eventually(lambda: load.num_sent > sent + 100, "requests do not go on")
        assert "no response to a health check" in one.replicas()["a"]["reason"]
        os.killpg(one.servers["a"].pid, signal.SIGCONT)
        one.wait_ready("a", "b")
        served = load.served["a"]
        eventually(lambda: load.served["a"] > served, "a gets no requests")
        load.stop()
        assert load.failures == []


def started(repository: Path, **environment: str) -> Fleet:
    """Replica b has this environment."""
    one = Fleet(repository)
    one.start("a")
    one.start("b", environment)
    config = repository.parent / "outliers.toml"
    config.write_text("[outlier]\ninterval_s = 1.0\nmin_requests = 5\neject_s = 60.0\n")
    one.route(one.flag("a"), one.flag("b"), f"--config={config}", "--policy=round_robin")
    one.wait_ready("a", "b")
    return one


def test_a_slow_replica_is_ejected(repository: Path) -> None:
    with contextlib.closing(_Stopping(started(repository, DELAY_S="0.4"))) as held:
        one = held.fleet
        load = Load(one.router.http_port, one.router.grpc_port, 100)
        eventually(lambda: bool(one.replicas()["b"]["ejected"]), "b is not ejected")
        load.stop()
        assert load.failures == []
        assert "duration" in one.replicas()["b"]["ejected"]["plus_one"]
        assert {ask(one, number)[1] for number in range(10)} == {"a"}
        assert ask(one, 1, "slow")  # other models of b still get requests


def test_a_replica_that_responds_with_errors_is_ejected(repository: Path) -> None:
    with contextlib.closing(_Stopping(started(repository, FAILS="1"))) as held:
        one = held.fleet
        statuses = [
            one.router.post("/v2/models/plus_one/infer", infer_body(number))[0]
            for number in range(40)
        ]
        assert statuses.count(200) >= 30
        assert statuses[-20:] == [200] * 20
        assert one.replicas()["b"]["ejected"] == {"plus_one": "5 server errors in a row"}


class _Stopping:
    def __init__(self, one: Fleet) -> None:
        self.fleet = one

    def close(self) -> None:
        self.fleet.stop()


def test_a_router_that_is_stopped_finishes_its_requests(repository: Path) -> None:
    with fleet(repository, "a") as one:
        calls = [HttpCall(one.router, "/v2/models/slow/infer", infer_body(n)) for n in range(2)]
        results: list[int] = []

        def infer() -> None:
            client = grpc_client.InferenceServerClient(one.router.grpc)
            results.append(int(client.infer("slow", grpc_input(7)).as_numpy("Y")[0]))
            client.close()

        thread = threading.Thread(target=infer)
        thread.start()
        eventually(lambda: one.replicas()["a"]["in_flight"] == 3, "the requests are not there")
        one.router.signal(signal.SIGTERM)
        assert [call.response()[0] for call in calls] == [200, 200]
        thread.join(60)
        assert results == [8]
        assert one.router.wait_exit() == 0


def test_a_second_router_serves_next_to_the_first(pair: Fleet, repository: Path) -> None:
    second = Fleet(repository)
    second._ports = pair._ports
    second.route(pair.flag("a"), pair.flag("b"))
    try:
        second.wait_ready("a", "b")
        for step in range(3):  # both routers know where the sequences are
            for number in range(301, 309):
                one = (pair, second)[(step + number) % 2]
                total, _ = ask(
                    one,
                    step,
                    "sum",
                    sequence_id=number,
                    sequence_start=step == 0,
                    sequence_end=step == 2,
                )
                assert total == sum(range(step + 1))
    finally:
        second.stop()


# Configuration.


def test_follows_its_config_file(pair: Fleet, repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"

    def write(*names: str, more: str = "") -> None:
        rows = []
        for name in names:
            http_port, grpc_port, _ = pair._ports[name]
            rows.append(
                f'[[replica]]\nurl = "http://127.0.0.1:{http_port}"\n'
                f'grpc = "127.0.0.1:{grpc_port}"\nname = "{name}"\n'
            )
        (tmp_path / "new").write_text("\n".join(rows) + more)
        os.replace(tmp_path / "new", path)

    write("a")
    one = Fleet(repository)
    one.route(f"--config={path}")
    try:
        one.wait_ready("a")
        assert {ask(one, number)[1] for number in range(6)} == {"a"}
        write("a", "b")
        one.wait_ready("a", "b")
        write("b")
        eventually(lambda: set(one.replicas()) == {"b"}, "a is still there")
        assert {ask(one, number)[1] for number in range(6)} == {"b"}
        write("b", more='\n[model.plus_one]\npolicy = "no_such:Policy"\n')
        one.router.wait_for_line("the configuration stays as it was: model 'plus_one': policy")
        assert {ask(one, number)[1] for number in range(6)} == {"b"}
        write("a", "b", more='\n[model.plus_one]\npolicy = "round_robin"\n')
        one.wait_ready("a", "b")
        models = json.loads(one.router.get("/router/models")[1])["models"]
        assert {row["name"]: row["policy"] for row in models}["plus_one"] == "round_robin"
    finally:
        one.stop()


def test_names_a_replica_that_is_not_an_inference_server(pair: Fleet) -> None:
    own = {"url": f"http://127.0.0.1:{pair.router.metrics_port}", "name": "own"}
    status, body = pair.router.post("/router/replicas", own)
    assert (status, b"is the address of this router itself" in body) == (400, True)
    spec = {"url": f"http://127.0.0.1:{pair.servers['a'].metrics_port}", "name": "metrics"}
    assert pair.router.post("/router/replicas", spec)[0] == 201
    eventually(lambda: pair.replicas()["metrics"]["state"] == "down", "not down")
    assert pair.replicas()["metrics"]["reason"]
    gone = {"url": "http://127.0.0.1:9", "name": "gone"}
    assert pair.router.post("/router/replicas", gone)[0] == 201
    eventually(lambda: "refused" in pair.replicas()["gone"]["reason"].lower(), "no reason")
    for name in ("metrics", "gone"):
        connection = http.client.HTTPConnection("127.0.0.1", pair.router.http_port, timeout=60)
        connection.request("DELETE", f"/router/replicas/{name}")
        assert connection.getresponse().status == 200
        connection.close()
    assert set(pair.replicas()) == {"a", "b"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--replica=http://h:1,grcp=h:2"], "unknown field `grcp`"),
        (["--replica=http://h:1", "--replica=http://h:1"], "two replicas have the name 'h:1'"),
        (["--policy=fastest"], "unknown policy 'fastest'"),
        (["--policy=no_such_module:Class"], "cannot be imported"),
        (["--config=/no/such/file"], "No such file"),
        (["--replica"], "--replica"),
        (["--http-port=x"], "--http-port"),
        (["--polcy=x"], "did you mean '--policy'"),
        (["--api-key-file=/no/such/file"], "/no/such/file"),
    ],
)
def test_says_what_is_wrong_with_its_options(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        naiad_command("router", *arguments),
        env=naiad_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# Keys.


def create_key(path: Path, name: str, *flags: str) -> str:
    done = subprocess.run(
        naiad_command("key", "create", name, f"--api-key-file={path}", *flags),
        env=naiad_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return next(word for word in done.stdout.split() if word.startswith("sk-naiad-"))


def test_checks_keys_at_the_router(pair: Fleet, repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    full = create_key(keys, "full")
    narrow = create_key(keys, "narrow", "--models=slow")
    one = Fleet(repository)
    one._ports = pair._ports
    one.route(pair.flag("a"), pair.flag("b"), f"--api-key-file={keys}")
    try:

        def status(key: str, path: str, body: object | None = None) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", one.router.http_port, timeout=60)
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data, headers)
            found = connection.getresponse().status
            connection.close()
            return found

        def is_served() -> bool:
            return status(full, "/v2/models/plus_one/infer", infer_body(1)) == 200

        eventually(is_served, "the router does not serve")
        path = "/v2/models/plus_one/infer"
        assert status("", path, infer_body(1)) == 401
        assert status("sk-naiad-x", path, infer_body(1)) == 401
        assert status(narrow, path, infer_body(1)) == 404
        assert status(narrow, "/v2/models/slow/infer", infer_body(1)) == 200
        assert status(narrow, "/v1/completions", {"model": "plus_one"}) == 404
        assert status("", "/router/replicas") == 401
        assert status(full, "/router/replicas/a/drain", {}) == 403
        assert status("", "/v2/health/ready") == 200
        client = grpc_client.InferenceServerClient(one.router.grpc)
        with pytest.raises(InferenceServerException, match="an API key is required"):
            client.infer("plus_one", grpc_input(1))
        headers = {"authorization": f"Bearer {full}"}
        assert client.infer("plus_one", grpc_input(1), headers=headers).as_numpy("Y")[0] == 2
        with pytest.raises(InferenceServerException, match="unknown model"):
            client.infer("plus_one", grpc_input(1), headers={"authorization": f"Bearer {narrow}"})
        client.close()
    finally:
        one.stop()


def test_replicas_check_keys_that_the_router_passes_on(repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    user = create_key(keys, "user")
    probe = create_key(keys, "router", "--scopes=model-repository,metadata,health")
    (tmp_path / "probe").write_text(probe + "\n")
    one = Fleet(repository)
    one.start("a", flags=[f"--api-key-file={keys}"])
    one.route(one.flag("a"), f"--replica-key-file={tmp_path / 'probe'}")
    try:
        one.wait_ready("a")
        assert one.router.post("/v2/models/plus_one/infer", infer_body(1))[0] == 401
        connection = http.client.HTTPConnection("127.0.0.1", one.router.http_port, timeout=60)
        connection.request(
            "POST",
            "/v2/models/plus_one/infer",
            json.dumps(infer_body(1)),
            {"Authorization": f"Bearer {user}"},
        )
        assert connection.getresponse().status == 200
        connection.close()
    finally:
        one.stop()


def test_speaks_tls_to_clients_and_replicas(repository: Path, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    cert, key = certificates.path("server.pem"), certificates.path("server.key")
    one = Fleet(repository)
    one.start(
        "a",
        flags=[
            "--http-use-ssl=true",
            f"--http-server-cert={cert}",
            f"--http-server-key={key}",
            "--grpc-use-ssl=true",
            f"--grpc-server-cert={cert}",
            f"--grpc-server-key={key}",
        ],
    )
    http_port, grpc_port, _ = one._ports["a"]
    one.route(
        f"--replica=https://127.0.0.1:{http_port},grpc=grpcs://127.0.0.1:{grpc_port},name=a",
        f"--replica-root-cert={certificates.path('ca.pem')}",
        f"--http-server-cert={cert}",
        f"--http-server-key={key}",
    )
    try:
        context = ssl.create_default_context(cafile=certificates.path("ca.pem"))
        url = f"https://127.0.0.1:{one.router.http_port}"

        def status(path: str, body: bytes | None = None) -> int:
            try:
                with urllib.request.urlopen(f"{url}{path}", body, 60, context=context) as found:
                    return int(found.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code

        eventually(lambda: status("/v2/models/plus_one/ready") == 200, "not ready")
        body = json.dumps(infer_body(1)).encode()
        assert status("/v2/models/plus_one/infer", body) == 200
        client = grpc_client.InferenceServerClient(
            one.router.grpc, ssl=True, root_certificates=certificates.path("ca.pem")
        )
        assert client.infer("plus_one", grpc_input(1)).as_numpy("Y")[0] == 2
        client.close()
    finally:
        one.stop()


def test_waits_for_a_server_that_starts_later(repository: Path) -> None:
    one = Fleet(repository)
    one.start("late").wait_started()
    one.kill("late")
    one.route(one.flag("late"))
    try:
        eventually(lambda: one.replicas()["late"]["state"] == "down", "not down")
        status, body = one.router.post("/v2/models/plus_one/infer", infer_body(1))
        assert (status, b"no replica can serve" in body) == (503, True)
        one.start("late")
        one.wait_ready("late")
        assert ask(one, 1) == (2, "late")
    finally:
        one.stop()
