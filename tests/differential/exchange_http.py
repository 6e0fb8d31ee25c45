"""Sends an HttpCase over its own socket and returns what a client acts on: status, some headers and
the decoded body."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib

from tests.differential.case import HttpCase, Response

HEADERS = ("Content-Type", "Content-Encoding", "Accept-Encoding", "Retry-After")
LENGTH = "Inference-Header-Content-Length"
TIMEOUT_S = 30


def exchange(case: HttpCase, port: int) -> Response:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(case.raw or request_bytes(case))
        response = http.client.HTTPResponse(connection, method=case.method)
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, ConnectionError) as error:
            return {"closed": type(error).__name__}
        except TimeoutError:
            return {"silent": f"no response in {TIMEOUT_S} s"}
    return described(response, body)


def request_bytes(case: HttpCase) -> bytes:
    lines = [f"{case.method} {case.path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in case.headers.items()]
    names = {name.lower() for name in case.headers}
    has_length = "content-length" in names or "transfer-encoding" in names
    if (case.body or case.method == "POST") and not has_length:
        lines.append(f"Content-Length: {len(case.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + case.body


def described(response: http.client.HTTPResponse, body: bytes) -> Response:
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if not body:
        headers.pop("Content-Type", None)
    fields: Response = {"status": response.status, "headers": headers}
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "deflate":
        body = zlib.decompress(body)
    if LENGTH in response.headers:
        size = int(response.headers[LENGTH])
        return {**fields, "json": parsed(body[:size]), "binary": body[size:].hex()}
    kind = headers.get("Content-Type", "")
    if kind.startswith("text/event-stream"):
        return {**fields, "events": events(body.decode())}
    if kind.startswith("application/json") and body:
        return {**fields, "json": parsed(body)}
    return {**fields, "text": body.decode("utf-8", "backslashreplace")}


def parsed(body: bytes) -> object:
    """Parses a JSON body. Triton passes on bytes that are not UTF-8; they become escapes. A body
    that is not JSON is kept as text."""
    text = body.decode("utf-8", "backslashreplace").replace("\\x", "\\\\x")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"not JSON": text}


def events(text: str) -> list[object]:
    """Returns the events of a stream. An event must be one `data:` line of JSON and an empty line;
    anything else is kept as text."""
    *blocks, rest = text.split("\n\n")
    result = [
        json.loads(block[6:]) if block.startswith("data: ") and "\n" not in block else block
        for block in blocks
    ]
    return [*result, rest] if rest else result
