"""A client of one language model behind OpenAI's routes: requests out, text in as it is made.

In:  the address of any server that has /v1/models, /v1/chat/completions and /v1/completions.
Out: pieces of text, in order. Rule: every failure is a ChatError whose text a person can act on.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from naiad.perf.channels.sse import SseReader
from naiad.transport.tcp_watch import expect_responses

_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 600.0
"""A model may take so long for its first token. A server that is gone is noticed much earlier."""
_PIECE_BYTES = 65_536


class ChatError(Exception):
    """The server is not there, or it refused the request."""


class ChatMessage(msgspec.Struct):
    role: str
    content: str


class Sampling(msgspec.Struct, frozen=True):
    """What the user chose; fields that are None are left to the model."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def fields(self) -> dict[str, Any]:
        values = msgspec.structs.asdict(self)
        return {name: value for name, value in values.items() if value is not None}


class ChatClient:
    def __init__(self, url: str, api_key: str = "") -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ChatError(f"'{url}' is not the address of a server, expected http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def model_names(self) -> list[str]:
        body = self._read_json("GET", "/v1/models")
        return [str(entry["id"]) for entry in body.get("data", [])]

    def choose_model(self, name: str) -> str:
        """Returns `name` if the server has it, or the only model if no name is given."""
        names = self.model_names()
        listed = ", ".join(names) or "none"
        if name and name not in names:
            raise ChatError(f"{self.url} has no language model '{name}'; it has: {listed}")
        if not name and len(names) != 1:
            raise ChatError(f"choose a model with --model; {self.url} has: {listed}")
        return name or names[0]

    def chat(
        self, model: str, messages: Sequence[ChatMessage], sampling: Sampling
    ) -> Iterator[str]:
        body = {"messages": msgspec.to_builtins(list(messages)), **sampling.fields()}
        for choice in self._stream("/v1/chat/completions", model, body):
            yield choice.get("delta", {}).get("content") or ""

    def complete(self, model: str, prompt: str, sampling: Sampling) -> Iterator[str]:
        body = {"prompt": prompt, **sampling.fields()}
        for choice in self._stream("/v1/completions", model, body):
            yield choice.get("text") or ""

    def _stream(self, path: str, model: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the choices of each event. Leaving the loop closes the connection, and with it
        the request."""
        connection = self._connect()
        try:
            response = self._send(
                connection, "POST", path, {"model": model, "stream": True, **body}
            )
            reader = SseReader()
            while True:
                piece = response.read1(_PIECE_BYTES)
                for data in reader.feed(piece) if piece else reader.finish():
                    if data == b"[DONE]":
                        return
                    event = _parse(data)
                    if "error" in event:
                        raise ChatError(_error_text(event))
                    yield from event.get("choices", [])
                if not piece:
                    return
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"the connection to {self.url} broke: {error}") from error
        finally:
            connection.close()

    def _read_json(self, method: str, path: str) -> dict[str, Any]:
        connection = self._connect()
        try:
            return _parse(self._send(connection, method, path, None).read())
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"the connection to {self.url} broke: {error}") from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise ChatError(f"cannot connect to {self.url}: {error}") from error
        assert isinstance(connection.sock, socket.socket)
        connection.sock.settimeout(_READ_TIMEOUT_S)
        expect_responses(connection.sock)
        return connection

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object
    ) -> http.client.HTTPResponse:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            text = response.read()
            raise ChatError(f"{self.url}{path}: {response.status} {_error_text(_parse(text))}")
        return response


def _parse(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        start = text[:200].decode(errors="replace")
        raise ChatError(f"expected JSON from the server, got: {start!r}")
    return document


def _error_text(document: dict[str, Any]) -> str:
    error = document.get("error", document)
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)
