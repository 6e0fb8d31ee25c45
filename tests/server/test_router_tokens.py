"""Limits of tokens, and limits that several routers share, at real routers in front of a server
that speaks as vLLM does."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, free_ports, naiad_command, naiad_environment, port_flags
from tests.server.test_router import create_key

USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}


class Upstream(BaseHTTPRequestHandler):
    """Uses 30 tokens for every request, whatever it allows."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = {"data": [{"id": "m"}]} if self.path == "/v1/models" else {}
        self._respond(404 if self.path.startswith("/v2") else 200, json.dumps(body).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/v2"):
            self._respond(404, b"{}")
        elif request.get("stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(25):
                data = b'data: {"choices":[{"text":"x"}]}\n\n'
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._respond(200, json.dumps({"choices": [{"text": "x"}], "usage": USAGE}).encode())

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    limits = {
        "tokens": ("--tpm=100",),
        "stream": ("--tpm=100",),
        "requests": ("--rpm=5",),
        "one": ("--rpm=1",),
        "free": (),
    }
    made = {name: create_key(path, name, *flags) for name, flags in limits.items()}
    return {**made, "path": str(path)}


@pytest.fixture(scope="module")
def routers(upstream: int, keys: dict[str, str]) -> Iterator[list[Server]]:
    made = []
    try:
        for index in range(2):
            ports = free_ports()
            command = naiad_command(
                "router",
                *port_flags(ports),
                f"--replica=http://127.0.0.1:{upstream}",
                f"--api-key-file={keys['path']}",
                "--num-routers=2",
                f"--router-index={index}",
                f"--router-name=r{index}",
                "--node-name=here",
                "--log-json",
            )
            made.append(Server(command, ports, naiad_environment()).wait_started())
        for router in made:
            eventually(
                lambda router=router: send(router, keys["free"])[0] == 200,  # type: ignore[misc]
                "the router does not serve",
            )
        yield made
    finally:
        for router in made:
            router.stop()


def send(router: Server, key: str, **fields: object) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", router.http_port, timeout=60)
    body = {"model": "m", "prompt": "x", "max_tokens": 20, **fields}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {key}"}
    )
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, {k.lower(): v for k, v in response.getheaders()}, data


def test_tokens_are_counted_by_what_the_response_says(
    routers: list[Server], keys: dict[str, str]
) -> None:
    statuses = [send(routers[0], keys["tokens"])[0] for _ in range(3)]
    # Half of 100 tokens are this router's. A request reserves 14 + 20 and uses 30.
    assert statuses == [200, 429, 429]
    status, headers, data = send(routers[0], keys["tokens"])
    assert status == 429
    assert headers["x-ratelimit-limit-tokens"] == "50"
    assert headers["x-ratelimit-remaining-tokens"] == "20"
    assert "50 tokens per minute; the request may need" in json.loads(data)["error"]["message"]
    assert "here, at one of 2 routers" in json.loads(data)["error"]["message"]
    assert send(routers[0], keys["tokens"], max_tokens=1)[0] == 200, "a small one still fits"


def test_a_stream_without_usage_is_counted_by_its_events(
    routers: list[Server], keys: dict[str, str]
) -> None:
    assert send(routers[0], keys["stream"], stream=True)[0] == 200
    status, headers, _ = send(routers[0], keys["stream"], max_tokens=50)
    assert status == 429
    left = int(headers["x-ratelimit-remaining-tokens"])
    assert 0 <= left <= 50 - 25


def test_routers_allow_a_limit_together(routers: list[Server], keys: dict[str, str]) -> None:
    statuses = [send(routers[number % 2], keys["requests"])[0] for number in range(20)]
    assert statuses.count(200) == 5
    assert statuses.count(429) == 15
    for router in routers:
        assert send(router, keys["free"])[0] == 200


def test_a_limit_that_cannot_be_divided_is_one_for_each_router(
    routers: list[Server], keys: dict[str, str]
) -> None:
    assert [send(routers[number % 2], keys["one"])[0] for number in range(6)].count(200) == 2


def test_metrics_and_log_lines_name_the_router(routers: list[Server], keys: dict[str, str]) -> None:
    _, page = routers[1].get("/metrics", "metrics")
    assert b'naiad_router_retries_total{router="r1"} 0' in page
    lines = [json.loads(line) for line in routers[1].lines if line.startswith("{")]
    assert lines
    assert {(line["node"], line["replica"]) for line in lines} == {("here", "r1")}
