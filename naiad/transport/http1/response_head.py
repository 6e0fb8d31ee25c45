"""The head of an HTTP/1.1 response: status line and framing fields, rendered from precomputed
pieces.

Frontends pass their own header fields as finished bytes (each line with its CRLF); this file adds
the fields that depend on the request.
"""

from __future__ import annotations

import http
import json

from naiad.core.memory_budget import RETRY_AFTER_S
from naiad.transport.http1.head import Head

STATUS_LINES: dict[int, bytes] = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in http.HTTPStatus
    if status.value >= 200
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
LAST_CHUNK = b"0\r\n\r\n"
RETRY_SOON = b"Retry-After: %d\r\n" % RETRY_AFTER_S

_CLOSE = b"Connection: close\r\n"
_KEEP_ALIVE = b"Connection: keep-alive\r\n"
_NO_BODY = frozenset((204, 304))


def render_head(status: int, headers: bytes, size: int) -> bytes:
    """Renders the common case (`Head.is_plain`): a response with a known size."""
    return b"%bContent-Length: %d\r\n%b\r\n" % (STATUS_LINES[status], size, headers)


def render_special_head(
    head: Head, status: int, headers: bytes, size: int | None, *, should_close: bool
) -> bytes:
    """`size` is None for a stream, which is chunked for HTTP/1.1 and ends with the connection for
    HTTP/1.0."""
    parts = [STATUS_LINES[status]]
    if size is None:
        if not head.is_http10:
            parts.append(b"Transfer-Encoding: chunked\r\n")
    elif status not in _NO_BODY:
        parts.append(b"Content-Length: %d\r\n" % size)
    parts.append(headers)
    parts.append(head.response_headers)
    if should_close:
        parts.append(_CLOSE)
    elif head.is_http10:
        parts.append(_KEEP_ALIVE)
    parts.append(b"\r\n")
    return b"".join(parts)


def error_body(message: str) -> bytes:
    return b'{"error":%b}' % json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
