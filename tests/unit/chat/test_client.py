"""The client of `naiad chat` against a small server: streams, errors, broken connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from naiad.chat.client import ChatClient, ChatError, ChatMessage, Sampling


class Handler(BaseHTTPRequestHandler):
    models = ["tiny"]
    received: list[tuple[str, dict[str, Any], str | None]] = []

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._send_json(200, {"data": [{"id": name} for name in self.models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.received.append((self.path, body, self.headers.get("Authorization")))
        if body["model"] == "refused":
            self._send_json(400, {"error": {"message": "temperature is out of range"}})
            return
        self.send_response(200)
        self.end_headers()
        for piece in ("Hel", "lo"):
            choice = {"delta": {"content": piece}, "text": piece}
            self.wfile.write(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode())
        if body["model"] == "failing":
            self.wfile.write(b'data: {"error": {"message": "out of memory"}}\n\n')
        else:
            self.wfile.write(b"data: [DONE]\n\n")

    def _send_json(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "received", [])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_chat_yields_pieces_and_sends_only_chosen_parameters(url: str) -> None:
    client = ChatClient(url, "secret")
    pieces = list(client.chat("tiny", [ChatMessage("user", "hi")], Sampling(max_tokens=5)))
    assert pieces == ["Hel", "lo"]
    assert Handler.received == [
        (
            "/v1/chat/completions",
            {
                "model": "tiny",
                "stream": True,
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 5,
            },
            "Bearer secret",
        )
    ]


def test_complete_yields_text(url: str) -> None:
    assert list(ChatClient(url).complete("tiny", "Once", Sampling())) == ["Hel", "lo"]


def test_the_only_model_is_chosen(url: str) -> None:
    assert ChatClient(url).choose_model("") == "tiny"


def test_a_model_must_be_named_when_there_are_several(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "models", ["a", "b"])
    with pytest.raises(ChatError, match=r"choose a model with --model; .* has: a, b"):
        ChatClient(url).choose_model("")
    with pytest.raises(ChatError, match="has no language model 'c'; it has: a, b"):
        ChatClient(url).choose_model("c")


def test_a_refusal_shows_the_message_of_the_server(url: str) -> None:
    with pytest.raises(ChatError, match="400 temperature is out of range"):
        list(ChatClient(url).complete("refused", "x", Sampling()))


def test_an_error_in_the_stream_ends_it(url: str) -> None:
    stream = ChatClient(url).complete("failing", "x", Sampling())
    assert [next(stream), next(stream)] == ["Hel", "lo"]
    with pytest.raises(ChatError, match="out of memory"):
        next(stream)


def test_nobody_listens() -> None:
    with pytest.raises(ChatError, match=r"cannot connect to http://127\.0\.0\.1:9"):
        ChatClient("127.0.0.1:9").model_names()


def test_an_address_without_host() -> None:
    with pytest.raises(ChatError, match="expected http://HOST:PORT"):
        ChatClient("ftp://x")
