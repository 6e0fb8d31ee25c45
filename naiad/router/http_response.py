"""The head of a replica's HTTP/1.1 response: bytes -> what the relay must know.

Rule: a head depends on its bytes alone. Replicas repeat their heads, so they are cached.
"""

from __future__ import annotations

import msgspec

from naiad.transport.http1.response_head import STATUS_LINES

_MAX_CACHED = 512
_HOP_BY_HOP = frozenset((
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
))  # fmt: skip
_NO_BODY = frozenset((204, 304))


class BadResponseError(Exception):
    """The replica sent something that is not an HTTP/1.1 response."""


class ResponseHead(msgspec.Struct, frozen=True):
    status: int
    content_length: int
    """-1 if the body ends with its last chunk or with the connection."""
    is_chunked: bool
    is_closing: bool
    """The connection ends after this response."""
    is_transparent: bool
    """The bytes of the head may be sent to the client as they are."""
    lines: bytes
    """The header fields for the client, without those that concern one connection or the length."""
    has_retry_after: bool
    is_rate_limit: bool
    """The response is about the limits of an API key."""
    content_type: bytes

    @property
    def is_not_admitted(self) -> bool:
        """The replica says that it has not begun with the request and that others may."""
        return self.has_retry_after and (
            self.status == 503 or (self.status == 429 and not self.is_rate_limit)
        )


def parse_response_head(block: bytes) -> ResponseHead:
    """`block` includes the empty line. Raises BadResponseError."""
    lines = block.split(b"\r\n")[:-2]
    version, _, rest = lines[0].partition(b" ")
    code = rest[:3]
    if version not in (b"HTTP/1.1", b"HTTP/1.0") or len(code) != 3 or not code.isdigit():
        raise BadResponseError(f"not an HTTP/1.1 response: {lines[0][:60]!r}")
    status = int(code)
    kept: list[bytes] = []
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        key = name.lower()
        if not colon or not name or name != name.strip():
            raise BadResponseError(f"malformed header field {line[:60]!r}")
        if key == b"content-length" and key in fields and fields[key] != value.strip():
            raise BadResponseError("two values of Content-Length")
        fields[key] = value.strip()
        if key not in _HOP_BY_HOP and key != b"content-length":
            kept.append(line + b"\r\n")
    is_chunked = fields.get(b"transfer-encoding", b"").lower() == b"chunked"
    if b"transfer-encoding" in fields and not is_chunked:
        raise BadResponseError("a transfer coding other than 'chunked'")
    length = -1
    if status in _NO_BODY:
        length = 0
    elif not is_chunked and b"content-length" in fields:
        if not fields[b"content-length"].isdigit():
            raise BadResponseError("Content-Length is not a number")
        length = int(fields[b"content-length"])
    connection = fields.get(b"connection", b"").lower()
    shown = status if status in STATUS_LINES or status < 200 else status // 100 * 100
    if shown >= 200 and shown not in STATUS_LINES:
        raise BadResponseError(f"unknown status {status}")
    return ResponseHead(
        shown,
        length,
        is_chunked,
        is_closing=(
            b"close" in connection
            or (version == b"HTTP/1.0" and connection != b"keep-alive")
            or (length < 0 and not is_chunked)
        ),
        is_transparent=(
            version == b"HTTP/1.1"
            and shown == status
            and length >= 0
            and b"content-length" in fields
            and not any(name in _HOP_BY_HOP for name in fields)
        ),
        lines=b"".join(kept),
        has_retry_after=b"retry-after" in fields,
        is_rate_limit=any(name.startswith(b"x-ratelimit-") for name in fields),
        content_type=fields.get(b"content-type", b""),
    )


class HeadCache:
    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: dict[bytes, ResponseHead] = {}

    def parse(self, block: bytes) -> ResponseHead:
        head = parse_response_head(block)
        if len(self.heads) >= _MAX_CACHED:
            self.heads.clear()
        self.heads[block] = head
        return head
