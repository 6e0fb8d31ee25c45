"""HTTP itself: methods, chunked bodies, Expect, pipelining and unusual headers. Raw bytes where a
client library would reject the request."""

from __future__ import annotations

import json

from tests.differential.case import Case, HttpCase, add_sub_inputs

BODY = json.dumps({"inputs": add_sub_inputs()}).encode()
PATH = "/v2/models/add_sub/infer"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def raw(name: str, head: str, body: bytes = b"", method: str = "POST", **options: object) -> Case:
    return HttpCase(
        name,
        method,
        "",
        raw=head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body,
        **options,  # type: ignore[arg-type]
    )


CASES: list[Case] = [
    raw(
        "chunked body", f"POST {PATH} HTTP/1.1\nHost: a\nTransfer-Encoding: chunked", chunked(BODY)
    ),
    raw(
        "chunked body in pieces",
        f"POST {PATH} HTTP/1.1\nHost: a\nTransfer-Encoding: chunked",
        chunked(BODY[:7], BODY[7:8], BODY[8:]),
    ),
    raw(
        "a length next to a chunked body",
        f"POST {PATH} HTTP/1.1\nHost: a\nContent-Length: {len(BODY)}\nTransfer-Encoding: chunked",
        chunked(BODY),
    ),
    raw("HTTP/1.0", f"POST {PATH} HTTP/1.0\nContent-Length: {len(BODY)}", BODY),
    raw("no Host", f"POST {PATH} HTTP/1.1\nContent-Length: {len(BODY)}", BODY),
    raw(
        "Connection: close",
        f"POST {PATH} HTTP/1.1\nHost: a\nConnection: close\nContent-Length: {len(BODY)}",
        BODY,
    ),
    raw(
        "header names in capitals",
        f"POST {PATH} HTTP/1.1\nHOST: a\nCONTENT-LENGTH: {len(BODY)}",
        BODY,
    ),
    raw(
        "absolute target",
        f"POST http://a{PATH} HTTP/1.1\nHost: a\nContent-Length: {len(BODY)}",
        BODY,
    ),
    raw("two slashes in the target", "GET //v2/health/live HTTP/1.1\nHost: a", method="GET"),
    raw("two slashes inside the target", "GET /v2//health/live HTTP/1.1\nHost: a", method="GET"),
    raw(
        "other content type",
        f"POST {PATH} HTTP/1.1\nHost: a\nContent-Type: text/plain\nContent-Length: {len(BODY)}",
        BODY,
    ),
    raw("OPTIONS", "OPTIONS /v2/health/live HTTP/1.1\nHost: a", method="OPTIONS"),
    raw("PATCH", f"PATCH {PATH} HTTP/1.1\nHost: a\nContent-Length: 2", b"{}"),
    raw(
        "HEAD of metadata",
        "HEAD /v2/models/add_sub HTTP/1.1\nHost: a",
        method="HEAD",
        expect={"status": 200},
        because="Naiad handles HEAD like GET",
    ),
    raw("POST without a body or length", f"POST {PATH} HTTP/1.1\nHost: a", normalise=("parser",)),
]
