"""Parses the head of an HTTP/1.1 response.

Out: a ResponseHead. Raises BadResponseError if the bytes are not an HTTP/1.x response.
HeadCache parses identical heads only once.
"""

from __future__ import annotations

import msgspec

_MAX_CACHED = 256


class BadResponseError(Exception):
    pass


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    content_length: int
    """-1 if the body ends with the connection or with its last chunk."""
    is_chunked: bool
    is_closing: bool
    tensor_header_bytes: int
    """Value of Inference-Header-Content-Length; 0 if absent."""
    content_type: bytes


def parse_head(block: bytes) -> ResponseHead:
    """Parses a head without the empty line that ends it."""
    lines = block.split(b"\r\n")
    status_line = lines[0].split(None, 2)
    if (
        len(status_line) < 2
        or not status_line[0].startswith(b"HTTP/1.")
        or not status_line[1].isdigit()
    ):
        raise BadResponseError(f"not an HTTP/1.1 response: {lines[0][:60]!r}")
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        fields[name.strip().lower()] = value.strip()
    status = int(status_line[1])
    is_chunked = b"chunked" in fields.get(b"transfer-encoding", b"").lower()
    if status < 200 or status in (204, 304):
        length = 0
    else:
        length = -1 if is_chunked else _integer(fields.get(b"content-length", b"-1"))
    connection = fields.get(b"connection", b"").lower()
    is_closing = (
        connection == b"close"
        or (status_line[0] == b"HTTP/1.0" and connection != b"keep-alive")
        or (length < 0 and not is_chunked)
    )
    tensor_header_bytes = _integer(fields.get(b"inference-header-content-length", b"0"))
    return ResponseHead(
        status,
        length,
        is_chunked,
        is_closing,
        tensor_header_bytes,
        fields.get(b"content-type", b""),
    )


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadResponseError(f"not a length: {text[:30]!r}") from None


class HeadCache:
    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, ResponseHead] = {}

    def head(self, block: bytes) -> ResponseHead:
        head = self._heads.get(block)
        if head is None:
            head = parse_head(block)
            if len(self._heads) >= _MAX_CACHED:
                self._heads.clear()
            self._heads[block] = head
        return head
