"""OpenAI's routes, and streams of language models, with several frontend processes. The engine
takes no time (bench/token_engine.py): its tokens are all equal, and can be counted."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.token_engine import TOKEN
from bench.token_streams import start, write_repository
from naiad.keys.key_file import KeyFile
from tests.server.gates import eventually
from tests.server.harness import Server, frontends
from tests.server.model_folder import write_model
from tests.server.test_frontend_keys import Ring, bearer
from tests.server.test_frontends import num_sockets
from tests.server.test_openai_embeddings import CONFIG as EMBEDDING_CONFIG
from tests.server.test_openai_embeddings import MODEL as EMBEDDING_MODEL
from tests.server.test_openai_embeddings import MODELS as EMBEDDING_MODELS

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
LAST_CHUNK = b"\r\n0\r\n\r\n"
BLS = 'parameters { key: "tensorrt_llm_model_name" value: { string_value: "tokens0" } }'
ENSEMBLE = """platform: "ensemble"
model_transaction_policy {{ decoupled: true }}
input [ {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "text_output" data_type: TYPE_STRING dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: "{part}" model_version: -1
  input_map {{ key: "text_input" value: "text_input" }}
  output_map {{ key: "text_output" value: "text_output" }} }} ] }}
"""
EMBEDDING_CODE = EMBEDDING_MODEL % EMBEDDING_MODELS["batched"]
NEVER = 10**9
"""More tokens than any test waits for."""


def chat(num_tokens: int, model: str = "tokens0", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model, "messages": messages, "max_tokens": num_tokens, **fields}
    return json.dumps(body).encode()


def embed(model: str, texts: str | list[str], **fields: Any) -> bytes:
    return json.dumps({"model": model, "input": texts, **fields}).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    write_repository(folder, 1)
    repository = folder / "repository"
    write_model(repository, "word", "word")
    write_model(repository, "bls", extra=BLS)
    for name, config, code in (
        ("pipeline", ENSEMBLE.format(part="tokens0"), ""),
        ("wrapped", ENSEMBLE.format(part="pipeline"), ""),
        ("vectors", EMBEDDING_CONFIG % EMBEDDING_MODELS["batched"], EMBEDDING_CODE),
    ):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code:
            (repository / name / "1" / "model.py").write_text(code)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    one = start(folder, 2)
    try:
        eventually(lambda: len(frontends(one)) == 2, "both frontends run")
        yield one
    finally:
        one.stop()


class Client:
    def __init__(self, server: Server) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)

    def post(self, path: str, body: bytes) -> http.client.HTTPResponse:
        self.connection.request("POST", path, body, {"Content-Type": "application/json"})
        return self.connection.getresponse()

    def close(self) -> None:
        self.connection.close()


def masked(data: bytes) -> bytes:
    """Without ids and times."""
    data = re.sub(rb'"(chatcmpl|cmpl|resp|msg|call|item)[-_][^"]*"', b'"id"', data)
    return re.sub(rb'"(created|created_at|completed_at)":[\d.]+', b'"time"', data)


CASES: list[tuple[str, bytes]] = [
    (CHAT, chat(5)),
    (CHAT, chat(5, stream=True)),
    (CHAT, chat(5, stream=True, stream_options={"include_usage": True})),
    ("/v1/completions", json.dumps({"model": "tokens0", "prompt": "a", "max_tokens": 3}).encode()),
    (
        "/v1/completions",
        json.dumps(
            {"model": "tokens0", "prompt": ["a", "b"], "max_tokens": 3, "stream": True}
        ).encode(),
    ),
    (
        "/v1/responses",
        json.dumps({"model": "tokens0", "input": "a", "max_output_tokens": 3}).encode(),
    ),
    (CHAT, chat(5, "nothing")),
    (CHAT, chat(5, "word")),
    (CHAT, b"not json"),
    (CHAT, chat(5, temperature=-1)),
    (CHAT, chat(5, stream_options={"include_usage": True})),
    (CHAT, chat(5)),
    ("/v2/models/tokens0/generate_stream", b'{"text_input": "a", "max_tokens": 4}'),
    ("/v2/models/tokens0/generate", b'{"text_input": "a", "max_tokens": 1}'),
    ("/v2/models/tokens0/generate", b'{"text_input": "a", "max_tokens": 2}'),
    ("/v2/models/nothing/generate_stream", b'{"text_input": "a"}'),
    ("/v2/models/tokens0/infer", b'{"inputs": []}'),
    (CHAT, chat(5, "pipeline")),
    (CHAT, chat(5, "pipeline", stream=True)),
    (CHAT, chat(5, "bls")),
    (CHAT, chat(5, "bls", stream=True)),
    (CHAT, chat(5, "wrapped")),
    (CHAT, chat(5, "vectors")),
    ("/v1/completions", json.dumps({"model": "bls", "prompt": "a", "max_tokens": 3}).encode()),
    (
        "/v1/responses",
        json.dumps({"model": "pipeline", "input": "a", "max_output_tokens": 3}).encode(),
    ),
    (EMBEDDINGS, embed("tokens0", "a")),
    (EMBEDDINGS, embed("vectors", "a")),
    (EMBEDDINGS, embed("vectors", [f"text {index}" for index in range(9)])),
    (EMBEDDINGS, embed("vectors", "a", encoding_format="base64")),
    (EMBEDDINGS, embed("vectors", ["a", "bad"])),
    (EMBEDDINGS, embed("vectors", [])),
    (EMBEDDINGS, embed("vectors", "a", dimensions=2)),
    (EMBEDDINGS, embed("nothing", "a")),
    (EMBEDDINGS, embed("word", "a")),
    (EMBEDDINGS, b"not json"),
]


def outcomes(server: Server, *, is_one_connection: bool) -> list[tuple[int, Any, bytes]]:
    found = []
    client = Client(server)
    for path, body in CASES:
        response = client.post(path, body)
        headers = sorted(
            (name, "" if name == "X-Request-Id" else value)
            for name, value in response.headers.items()
            if name != "Content-Length"
        )
        found.append((response.status, headers, masked(_joined(response.read()))))
        if not is_one_connection:
            client.close()
            client = Client(server)
    client.close()
    return found


def _joined(data: bytes) -> bytes:
    """Tokens that come in one event, or in several."""
    return re.sub(rb"(?: tok)+", b" tok", data)


def test_two_frontends_respond_as_one_process_does(folder: Path, server: Server) -> None:
    two = [outcomes(server, is_one_connection=kept) for kept in (False, True)]
    alone = start(folder, 1)
    try:
        one = outcomes(alone, is_one_connection=True)
    finally:
        alone.stop()
    for index, (path, body) in enumerate(CASES):
        for found in two:
            assert found[index][:2] == one[index][:2], (path, body)
            assert events(found[index][2]) == events(one[index][2]), (path, body)


def events(data: bytes) -> list[bytes]:
    """The kinds of events of a stream: how many tokens one has is a matter of timing."""
    return sorted(set(data.split(b"\n\n")))


def test_both_frontends_write_streams_with_all_tokens(server: Server) -> None:
    clients = [Client(server) for _ in range(8)]
    for client in clients:
        client.connection.request("POST", CHAT, chat(3000, stream=True))
    responses = [client.connection.getresponse() for client in clients]
    for response in responses:
        data = response.read()
        assert data.count(TOKEN.encode()) == 3000
        assert data.endswith(b"data: [DONE]\n\n")
    numbers = [num_sockets(pid, server.http_port) for pid in frontends(server)]
    assert sorted(numbers) == [4, 4]
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (EMBEDDINGS, embed("vectors", "a"), 200),
        (CHAT, chat(3, "pipeline"), 200),
        (CHAT, chat(3, "bls"), 200),
        (CHAT, chat(3, "word"), 400),
    ],
)
def test_frontends_serve_every_model_of_openai_routes(
    server: Server, path: str, body: bytes, status: int
) -> None:
    client = Client(server)
    for _ in range(2):
        response = client.post(path, body)
        response.read()
        assert response.status == status
    found = sum(num_sockets(pid, server.http_port) for pid in frontends(server))
    client.close()
    assert found == 1


def test_a_step_that_was_unloaded_makes_no_language_model(folder: Path) -> None:
    server = start(folder, 2, "--model-control-mode=explicit", "--load-model=*")
    try:
        client = Client(server)
        assert client.post(CHAT, chat(3, "bls")).read().count(b" tok")
        assert server.post("/v2/repository/models/tokens0/unload", b"")[0] == 200
        response = client.post(CHAT, chat(3, "bls"))
        assert (response.status, b"is not a language model" in response.read()) == (400, True)
        assert server.post("/v2/repository/models/tokens0/load", b"")[0] == 200
        assert client.post(CHAT, chat(3, "bls")).status == 200
        client.close()
    finally:
        server.stop()


def num_cancelled(server: Server) -> int:
    page = server.get("/metrics", "metrics")[1].decode()
    rows = re.findall(
        r'nv_inference_request_failure{.*model="tokens0".*reason="CANCELED".*} (\d+)', page
    )
    return sum(map(int, rows))


class Endless:
    """A stream that does not end, and has begun."""

    def __init__(self, server: Server) -> None:
        self._client = Client(server)
        self._response = self._client.post(CHAT, chat(NEVER, stream=True))
        assert self._response.status == 200
        assert self._response.read(100)

    def close(self) -> None:
        self._response.close()
        self._client.close()


def test_a_client_that_leaves_cancels_its_stream(server: Server) -> None:
    before = num_cancelled(server)
    clients = [Endless(server) for _ in range(4)]
    for client in clients:
        client.close()
    eventually(lambda: num_cancelled(server) == before + 4, "four requests are cancelled")


def test_a_client_that_does_not_read_gets_every_token_later(server: Server) -> None:
    count = 200_000
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", server.http_port))
        body = chat(count, stream=True)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        time.sleep(1.0)
        other = Client(server)
        data = other.post(CHAT, chat(100, stream=True)).read()
        assert data.count(TOKEN.encode()) == 100
        other.close()
        found, rest = 0, b""
        while rest != LAST_CHUNK:
            data = rest + sock.recv(1 << 20)
            assert data != rest
            cut = data.rfind(b"}")  # no token is in two pieces of a chunk
            found += data[:cut].count(b" tok")
            rest = data[cut:] if not data.endswith(LAST_CHUNK) else LAST_CHUNK
    assert found == count


def test_a_killed_frontend_cancels_its_streams(server: Server) -> None:
    before = num_cancelled(server)
    clients = [Endless(server) for _ in range(4)]
    killed = frontends(server)[0]
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: num_cancelled(server) >= before + 2, "its requests are cancelled")
    for client in clients:
        client.close()
    eventually(lambda: num_cancelled(server) == before + 4, "the others end with their clients")
    eventually(
        lambda: len(frontends(server)) == 2 and killed not in frontends(server), "it is replaced"
    )


def test_an_endless_stream_does_not_hold_up_other_requests(server: Server) -> None:
    client = Endless(server)
    other = Client(server)
    any_input = {"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}
    for _ in range(20):
        response = other.post("/v2/models/word/infer", json.dumps({"inputs": [any_input]}).encode())
        assert (response.status, response.read()[:1]) == (200, b"{")
    client.close()
    other.close()


def test_pipelined_requests_for_every_model_get_their_responses_in_order(server: Server) -> None:
    bodies = [chat(3), chat(3, "nothing"), chat(3, "word"), chat(3)]
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    data = b"".join(head.format(CHAT, len(body)).encode() + body for body in bodies)
    data += b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=60) as sock:
        sock.sendall(data)
        received = b""
        while chunk := sock.recv(1 << 16):
            received += chunk
    statuses = re.findall(rb"HTTP/1.1 (\d+)", received)
    assert statuses == [b"200", b"404", b"400", b"200", b"200"]


# API keys.


def limited_outcomes(folder: Path, tmp_path: Path, num_processes: int) -> list[Any]:
    """What a key with a limit of tokens sees, and what is counted for it."""
    ring = Ring(tmp_path / f"keys{num_processes}.json")
    key = ring.create("tokens", tpm_limit=300)
    KeyFile(ring.path).change(lambda _: ring.document)
    audit = tmp_path / f"audit{num_processes}.jsonl"
    flags = ("--api-key-file", str(ring.path), "--audit-log", str(audit))
    server = start(folder, num_processes, *flags)
    try:
        client, found = Client(server), list[Any]()
        cases = [
            (CHAT, chat(50, stream=True)),
            (CHAT, chat(50)),
            (CHAT, chat(5000)),
            (CHAT, b"not json"),
            (CHAT, chat(50, "nothing")),
            (EMBEDDINGS, embed("vectors", ["two words", "and three words"])),
            (CHAT, chat(20, "pipeline")),
            (EMBEDDINGS, embed("vectors", "too long " * 200)),
        ]
        for path, body in cases:
            client.connection.request("POST", path, body, bearer(key))
            response = client.connection.getresponse()
            data = masked(_joined(response.read()))
            headers = {
                name: value
                for name, value in response.headers.items()
                if name.startswith("x-ratelimit") and "reset" not in name
            }
            key_id = key.removeprefix("sk-naiad-")[:8].encode()
            found.append((response.status, headers, events(data.replace(key_id, b"key"))))
        client.close()
        eventually(lambda: len(audit.read_text().splitlines()) == len(cases), "the audit log")
        for line in map(json.loads, audit.read_text().splitlines()):
            fields = ("api", "model", "status", "prompt_tokens", "output_tokens")
            found.append(tuple(line[field] for field in fields))
        return found
    finally:
        server.stop()


def test_tokens_of_a_key_are_counted_as_by_one_process(folder: Path, tmp_path: Path) -> None:
    one, two = (limited_outcomes(folder, tmp_path, count) for count in (1, 2))
    assert two == one
    assert [outcome[0] for outcome in two[:8]] == [200, 200, 429, 400, 404, 200, 200, 429]
    assert two[1][1]["x-ratelimit-remaining-tokens"] != two[0][1]["x-ratelimit-remaining-tokens"]
