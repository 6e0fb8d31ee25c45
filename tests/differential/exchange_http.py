"""Sends an HttpCase over a socket of its own and keeps what a client acts on: status, a few
headers, the decoded body."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib

from tests.differential.case import Answer, HttpCase

HEADERS = ("Content-Type", "Content-Encoding", "Accept-Encoding", "Retry-After")
LENGTH = "Inference-Header-Content-Length"
TIMEOUT_S = 30


def exchange(case: HttpCase, port: int) -> Answer:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(case.raw or request_bytes(case))
        response = http.client.HTTPResponse(connection, method=case.method)
        try:
            response.begin()
            body = response.read()
        except (http.client.HTTPException, ConnectionError) as error:
            return {"closed": type(error).__name__}
        except TimeoutError:
            return {"silent": f"no answer in {TIMEOUT_S} s"}
    return described(response, body)


def request_bytes(case: HttpCase) -> bytes:
    lines = [f"{case.method} {case.path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in case.headers.items()]
    if (case.body or case.method == "POST") and not {"content-length", "transfer-encoding"} & {
        name.lower() for name in case.headers
    }:
        lines.append(f"Content-Length: {len(case.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + case.body


def described(response: http.client.HTTPResponse, body: bytes) -> Answer:
    headers = {name: response.headers[name] for name in HEADERS if name in response.headers}
    if not body:
        headers.pop("Content-Type", None)
    answer: Answer = {"status": response.status, "headers": headers}
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding == "gzip":
        body = gzip.decompress(body)
    elif encoding == "deflate":
        body = zlib.decompress(body)
    if LENGTH in response.headers:
        size = int(response.headers[LENGTH])
        return {**answer, "json": parsed(body[:size]), "binary": body[size:].hex()}
    kind = headers.get("Content-Type", "")
    if kind.startswith("text/event-stream"):
        return {**answer, "events": events(body.decode())}
    if kind.startswith("application/json") and body:
        return {**answer, "json": parsed(body)}
    return {**answer, "text": body.decode("utf-8", "backslashreplace")}


def parsed(body: bytes) -> object:
    """Triton passes on bytes that are no UTF-8: they are kept as escapes. What is no JSON at all is
    kept as text."""
    text = body.decode("utf-8", "backslashreplace").replace("\\x", "\\\\x")
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"not JSON": text}


def events(text: str) -> list[object]:
    """Each event of a stream must be one `data:` line of JSON and an empty line; anything else is
    kept as it came."""
    *blocks, rest = text.split("\n\n")
    found = [
        json.loads(block[6:]) if block.startswith("data: ") and "\n" not in block else block
        for block in blocks
    ]
    return [*found, rest] if rest else found
