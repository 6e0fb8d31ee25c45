"""API keys with several frontend processes: what clients, the audit log and the metrics see is what
one process would do, and limits are exact over all processes."""

from __future__ import annotations

import collections
import http.client
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from naiad.keys import key_change
from naiad.keys.api_class import HEALTH, PAGE, SCOPES, UNCLASSIFIED
from naiad.keys.key import KeyDocument, utc_now
from naiad.keys.key_change import NewKey
from naiad.keys.key_file import KeyFile
from naiad.pb import grpc_service_pb2 as pb
from tests.entrances import http_entrances, rpc_entrances
from tests.server.gates import Hold, eventually, in_thread, pending
from tests.server.harness import Server, frontends, naiad
from tests.server.model_folder import write_model
from tests.server.test_frontends import ANY

INFER = "/v2/models/word/infer"
OPEN = (HEALTH, PAGE)
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
_MASKED = re.compile(rb"(?i)(x-ratelimit-reset-\w+: |retry-after: )\d+")
"""Headers whose values depend on the moment."""


class Ring:
    """A key file with keys of every kind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = KeyDocument()
        self.good = self.create("good", scopes=SCOPES)
        self.revoked = self.create("revoked")
        self.other_scope = self.create("other scope", scopes=("metadata",))
        self.other_model = self.create("other model", models=("nothing*",))
        self.three = self.create("three", rpm_limit=3)
        self.four = self.create("four", rpm_limit=4)
        key = key_change.find(self.document, self.revoked)
        self.document = key_change.revoke(self.document, key, utc_now())
        KeyFile(path).change(lambda _: self.document)

    def create(self, name: str, **fields: Any) -> str:
        issued = key_change.create(self.document, NewKey(name=name, **fields), utc_now())
        self.document = issued.document
        return issued.token

    def names(self) -> dict[str, str]:
        return {key.id: key.name for key in self.document.keys}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "word", "word")
    return folder


INSTANCES = "instance_group [ { count: 4 kind: KIND_CPU } ]"


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Ring:
    return Ring(tmp_path_factory.mktemp("keys") / "keys.json")


@pytest.fixture(scope="module")
def server(folder: Path, ring: Ring, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    flags = ["--api-key-file", str(ring.path), "--audit-log", str(audit), "--frontend-processes=2"]
    with naiad([str(folder)], flags) as one:
        eventually(lambda: len(frontends(one)) == 2, "both frontends run")
        yield one


class Client:
    """One kept-alive connection."""

    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def request(
        self, method: str, path: str, body: bytes = b"", key: str = ""
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        self.connection.request(method, path, body, bearer(key) if key else {})
        response = self.connection.getresponse()
        data = response.read()
        is_json = data[:1] in (b"{", b"[")
        return response.status, json.loads(data) if is_json else data, response.headers

    def infer(self, key: str, model: str = "word") -> int:
        return self.request("POST", f"/v2/models/{model}/infer", ANY, key)[0]

    def close(self) -> None:
        self.connection.close()


# One process and two frontends.


def http_outcomes(server: Server, ring: Ring) -> list[bytes]:
    """The responses to requests of one connection, as they are on the wire."""
    cases: list[tuple[str, bytes]] = [
        ("", ANY),
        (ring.good[:-4] + "AAAA", ANY),
        (ring.revoked, ANY),
        (ring.other_scope, ANY),
        (ring.other_model, ANY),
        *[(ring.good, ANY)] * 4,
        (ring.good, b"not json"),
        (ring.good, b'{"inputs": []}'),
        *[(ring.three, ANY), (ring.three, b"not json"), (ring.three, ANY)],
        *[(ring.three, ANY), (ring.three, b"not json")],
        (ring.good, ANY),
    ]
    outcomes = []
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as sock:
        file = sock.makefile("rb")
        for key, body in cases:
            head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            head += f"Authorization: Bearer {key}\r\n" if key else ""
            sock.sendall(head.encode() + b"\r\n" + body)
            lines = b""
            while not lines.endswith(b"\r\n\r\n"):
                lines += file.readline()
            length = re.search(rb"Content-Length: (\d+)", lines)
            assert length is not None, lines
            content = file.read(int(length[1]))
            content = re.sub(rb'"word [^"]*"', b'"word"', content)
            lines = re.sub(rb"Content-Length: \d+", b"Content-Length: n", lines)
            outcomes.append(_MASKED.sub(rb"\1n", lines) + content)
        file.close()
    return outcomes


def infer_message(data: int = 0) -> bytes:
    tensor = pb.ModelInferRequest.InferInputTensor(name="ANY", datatype="INT32", shape=[1])
    tensor.contents.int_contents.append(data)
    return pb.ModelInferRequest(model_name="word", inputs=[tensor]).SerializeToString()


def call(channel: grpc.Channel, path: str, message: bytes, key: str = "") -> grpc.RpcError | None:
    """Returns None if the call succeeds."""
    metadata = list(bearer(key).items()) if key else []
    try:
        channel.unary_unary(path)(message, metadata=metadata, timeout=60)
    except grpc.RpcError as error:
        return error
    return None


def grpc_outcomes(server: Server, ring: Ring) -> list[Any]:
    bad = pb.ModelInferRequest(model_name="word").SerializeToString()
    cases = [
        *[("", infer_message()), (ring.good[:-4] + "AAAA", infer_message())],
        *[(ring.revoked, infer_message()), (ring.other_scope, infer_message())],
        *[(ring.other_model, infer_message()), (ring.good, bad)],
        *[(ring.good, infer_message())] * 4,
        *[(ring.four, infer_message()), (ring.four, bad)],
        *[(ring.four, infer_message())] * 4,
    ]
    outcomes: list[Any] = []
    with grpc.insecure_channel(server.grpc) as channel:
        for key, message in cases:
            error = call(channel, MODEL_INFER, message, key)
            outcome: Any = None
            if error is not None:
                names = sorted(name for name, _ in error.trailing_metadata())
                outcome = error.code(), error.details(), names
            outcomes.append(outcome)
    return outcomes


def key_metrics(server: Server, ring: Ring) -> list[str]:
    names = ring.names()
    page = server.get("/metrics", "metrics")[1].decode()
    lines = [line for line in page.splitlines() if line.startswith("naiad_api_key")]
    return sorted(
        re.sub(r'key="(\w+)"', lambda match: f'key="{names[match[1]]}"', line)
        for line in lines
        if not line.endswith(" 0")
    )


def run_cases(folder: Path, tmp_path: Path, num_processes: int) -> tuple[Any, ...]:
    """The responses, the lines of the audit log, and the metrics."""
    ring = Ring(tmp_path / f"keys{num_processes}.json")
    audit = tmp_path / f"audit{num_processes}.jsonl"
    flags = ["--api-key-file", str(ring.path), "--audit-log", str(audit)]
    flags += [f"--frontend-processes={num_processes}", "--model-control-mode=explicit"]
    with naiad([str(folder)], [*flags, "--load-model=word"]) as server:
        names = ring.names()
        found = [*http_outcomes(server, ring), *grpc_outcomes(server, ring)]
        eventually(
            lambda: len(audit.read_text().splitlines()) == len(found), "a line for each request"
        )
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        fields = ("api", "model", "status", "address")
        audited = sorted(
            [names.get(line["key"], ""), *(line[field] for field in fields)] for line in lines
        )
        return [_named(outcome, names) for outcome in found], audited, key_metrics(server, ring)


def test_two_frontends_respond_as_one_process_does(folder: Path, tmp_path: Path) -> None:
    one, two = (run_cases(folder, tmp_path, num_processes) for num_processes in (1, 2))
    for expected, found in zip(one, two, strict=True):
        assert found == expected
    statuses = collections.Counter(
        outcome.split()[1] for outcome in two[0] if isinstance(outcome, bytes)
    )
    assert statuses == {b"200": 7, b"401": 3, b"403": 1, b"404": 1, b"400": 1, b"500": 2, b"429": 2}


def _named(outcome: Any, names: dict[str, str]) -> Any:
    """Keys have other ids in another file."""
    for key_id, name in names.items():
        if isinstance(outcome, bytes):
            outcome = outcome.replace(key_id.encode(), name.encode())
        elif outcome is not None:
            outcome = outcome[0], outcome[1].replace(key_id, name), outcome[2]
    return outcome


# Every entrance.


def test_every_route_of_a_connection_that_a_frontend_has_needs_a_key(
    server: Server, ring: Ring
) -> None:
    for entrance in http_entrances():
        client = Client(server)
        assert client.infer(ring.good) == 200
        status, body, _ = client.request(entrance.method, entrance.path)
        if entrance.api in OPEN:
            assert status not in (401, 403), entrance
        else:
            assert status == 401, (entrance, body)
            assert client.infer(ring.good) == 200
            scopes = {"metadata"} if entrance.api == UNCLASSIFIED else {entrance.api}
            if scopes != {"metadata"}:
                status, body, _ = client.request(
                    entrance.method, entrance.path, key=ring.other_scope
                )
                assert status == 403, (entrance, body)
        client.close()


def test_every_rpc_of_a_frontend_needs_a_key(server: Server, ring: Ring) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        for entrance in rpc_entrances():
            if entrance.path.endswith("Watch"):
                continue  # it never ends
            is_stream = "Stream" in entrance.path or "Reflection" in entrance.path
            if is_stream:
                responses = channel.stream_stream(entrance.path)(iter([b""]), timeout=60)
                with pytest.raises(grpc.RpcError) as caught:
                    list(responses)
                error: grpc.RpcError | None = caught.value
            else:
                error = call(channel, entrance.path, b"")
            if entrance.api in OPEN:
                assert error is None or error.code() is not grpc.StatusCode.UNAUTHENTICATED
                continue
            assert error is not None, entrance
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED, entrance
            if entrance.api not in (UNCLASSIFIED, "metadata") and not is_stream:
                error = call(channel, entrance.path, b"", ring.other_scope)
                assert error is not None
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED, entrance


def test_a_session_of_the_console_works_on_a_connection_of_a_frontend(
    server: Server, ring: Ring
) -> None:
    client = Client(server)
    assert client.infer(ring.good) == 200
    body = json.dumps({"key": ring.good}).encode()
    client.connection.request(
        "POST", "/console/api/session", body, {"Content-Type": "application/json"}
    )
    response = client.connection.getresponse()
    secret = json.loads(response.read())["secret"]
    assert response.status == 200
    cookie = response.headers["Set-Cookie"].partition(";")[0]
    for _ in range(3):
        client.connection.request("POST", INFER, ANY, {"Cookie": cookie, "x-naiad-console": secret})
        response = client.connection.getresponse()
        assert (response.status, response.read()[:1]) == (200, b"{")
    client.close()


# Limits.


def test_requests_per_minute_are_exact_over_all_processes(server: Server, ring: Ring) -> None:
    key = new_key(server, ring, "fifty", rpm_limit=50)
    statuses: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def send() -> None:
        client = Client(server)
        for _ in range(10):
            status = client.infer(key)
            with lock:
                statuses[status] += 1
        client.close()

    run_together([send] * 16)
    assert statuses == {200: 50, 429: 110}


def test_parallel_requests_are_exact_and_a_dead_frontend_frees_its_own(
    tmp_path: Path,
) -> None:
    ring = Ring(tmp_path / "keys.json")
    repository = tmp_path / "models"
    first, second = Hold(tmp_path), Hold(tmp_path)
    write_model(repository, "word", "word")
    write_model(repository, "first", execute=first.statement, extra=INSTANCES)
    write_model(repository, "second", execute=second.statement)
    flags = ["--api-key-file", str(ring.path), "--frontend-processes=2"]
    with naiad([str(repository)], flags) as server:
        eventually(lambda: len(frontends(server)) == 2, "both frontends run")
        key = new_key(server, ring, "two", max_parallel_requests=2)
        statuses: list[int] = []
        jobs = [
            in_thread(lambda: statuses.append(infer_once(server, key, "first"))) for _ in range(6)
        ]
        eventually(lambda: len(statuses) == 4, "all but two have their responses")
        first.release()
        for job in jobs:
            job.result(60)
        assert statuses == [429, 429, 429, 429, 200, 200]
        clients = [Client(server) for _ in range(2)]
        for client in clients:
            headers = bearer(key)
            client.connection.request("POST", "/v2/models/second/infer", ANY, headers)
        eventually(lambda: pending(server, "second") == 1, "one is executed, one waits")
        assert infer_once(server, key) == 429
        for pid in frontends(server):
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(frontends(server)) == 2, "the frontends are replaced")
        eventually(lambda: infer_once(server, key) == 200, "the places are free")
        second.release()
        for client in clients:
            client.close()


def infer_once(server: Server, key: str, model: str = "word") -> int:
    """Returns the status of one request, and 0 if its connection broke."""
    client = Client(server)
    try:
        return client.infer(key, model)
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        client.close()


def new_key(server: Server, ring: Ring, name: str, **fields: Any) -> str:
    """Creates a key over the API. It is valid in every process when the server has responded."""
    client = Client(server)
    body = json.dumps({"key_alias": name, **fields}).encode()
    status, created, _ = client.request("POST", "/key/generate", body, ring.good)
    assert status == 200, created
    client.close()
    return str(created["key"])


def run_together(jobs: list[Any]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Changes.


def test_a_revocation_is_answered_when_no_process_accepts_the_key(
    server: Server, ring: Ring
) -> None:
    is_over = threading.Event()
    others: list[int] = []

    def load() -> None:
        """Requests of another key meanwhile."""
        client = Client(server)
        while not is_over.is_set():
            others.append(client.infer(ring.good))
        client.close()

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(3):
        key = new_key(server, ring, f"short {number}")
        clients = [Client(server) for _ in range(6)]
        assert [client.infer(key) for client in clients] == [200] * 6
        admin = Client(server)
        body = json.dumps({"key": key}).encode()
        assert admin.request("POST", "/key/block", body, ring.good)[0] == 200
        assert [client.infer(key) for client in clients] == [401] * 6
        for client in (*clients, admin):
            client.close()
    is_over.set()
    for thread in threads:
        thread.join()
    assert set(others) == {200}


def test_counts_of_keys_are_sums_and_never_go_back(server: Server, ring: Ring) -> None:
    key = new_key(server, ring, "counted")
    key_id = key.removeprefix("sk-naiad-")[:8]

    def count() -> int:
        page = server.get("/metrics", "metrics")[1].decode()
        row = re.search(rf'naiad_api_key_requests_total{{key="{key_id}"}} (\d+)', page)
        return int(row[1]) if row else 0

    readings = [0]
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            readings.append(count())
            time.sleep(0.01)

    reader = threading.Thread(target=read)
    reader.start()

    def send() -> None:
        client = Client(server)
        for number in range(25):
            body = b"bad" if number % 5 == 0 else ANY
            assert client.request("POST", INFER, body, key)[0] in (200, 500)
        client.close()

    run_together([send] * 8)
    eventually(lambda: count() == 200, "every request is counted")
    is_over.set()
    reader.join()
    assert readings == sorted(readings)
