"""A replica's HTTP/1.1 response: bytes in any pieces -> its head, its body, and where it ends.

Rule: no I/O. A head depends on its bytes alone; replicas repeat their heads, so they are cached.
      What could be read in two ways is an error, and after an error nothing that follows on the
      connection can be trusted to be a response.
"""

from __future__ import annotations

import re
import sys

import msgspec

from naiad.router.http_fields import is_for_client, named_in_connection, parse_retry_after
from naiad.transport.http1.chunked import ChunkedDecoder, ChunkError
from naiad.transport.http1.response_head import STATUS_LINES

_MAX_CACHED = 512
_MAX_HEAD_BYTES = 64 * 1024
_MAX_INFORMATIONAL = 8
_MAX_LENGTH_DIGITS = 18
_NO_BODY = frozenset((204, 304))
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNIQUE = frozenset((b"content-length", b"transfer-encoding"))


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
    retry_after_s: int
    """-1 if there is no reasonable number of seconds."""
    is_rate_limit: bool
    """The response is about the limits of an API key."""
    content_type: bytes

    @property
    def is_refusal(self) -> bool:
        """The replica has no room for the request."""
        return self.status == 503 or (self.status == 429 and not self.is_rate_limit)

    @property
    def is_not_admitted(self) -> bool:
        """The replica says that it has not begun with the request and that others may."""
        return self.has_retry_after and self.is_refusal


def parse_response_head(block: bytes) -> ResponseHead:
    """`block` includes the empty line. Raises BadResponseError."""
    lines = block.split(b"\r\n")[:-2]
    version, status = _parse_status_line(lines[0])
    kept: list[tuple[bytes, bytes]] = []
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        key, value = name.lower(), value.strip(b" \t")
        if not colon or _TOKEN.fullmatch(name) is None or _CONTROL.search(value):
            raise BadResponseError(f"malformed header field {line[:60]!r}")
        if key in fields and key in _UNIQUE:
            raise BadResponseError(f"two values of {name.decode()}")
        fields[key] = fields[key] + b", " + value if key in fields else value
        if key != b"content-length" and is_for_client(key, value):
            kept.append((key, line + b"\r\n"))
    connection = fields.get(b"connection", b"").lower()
    named = named_in_connection(connection)
    for_client = [line for key, line in kept if key not in named]
    is_chunked, length = _framing(status, version, fields)
    shown = status if status in STATUS_LINES or status < 200 else status // 100 * 100
    if shown >= 200 and shown not in STATUS_LINES:
        raise BadResponseError(f"unknown status {status}")
    sent_length = fields.get(b"content-length", b"")
    return ResponseHead(
        shown,
        length,
        is_chunked,
        is_closing=(
            b"close" in connection
            or (version == b"HTTP/1.0" and connection != b"keep-alive")
            or (length < 0 and not is_chunked)
            or (is_chunked and bool(sent_length))
        ),
        is_transparent=(
            version == b"HTTP/1.1"
            and shown == status
            and sent_length == b"%d" % length
            and len(for_client) == len(lines) - 2  # all but the status line and the length
        ),
        lines=b"".join(for_client),
        has_retry_after=b"retry-after" in fields,
        retry_after_s=parse_retry_after(fields.get(b"retry-after", b"")),
        is_rate_limit=any(name.startswith(b"x-ratelimit-") for name in fields),
        content_type=fields.get(b"content-type", b""),
    )


def _parse_status_line(line: bytes) -> tuple[bytes, int]:
    version, _, rest = line.partition(b" ")
    code, text = rest[:3], rest[3:]
    if (
        version not in (b"HTTP/1.1", b"HTTP/1.0")
        or len(code) != 3
        or not code.isdigit()
        or text[:1] not in (b"", b" ")
        or _CONTROL.search(text)
    ):
        raise BadResponseError(f"not an HTTP/1.1 response: {line[:60]!r}")
    status = int(code)
    if status == 101:
        raise BadResponseError("status 101, although nobody asked for another protocol")
    return version, status


def _framing(status: int, version: bytes, fields: dict[bytes, bytes]) -> tuple[bool, int]:
    """Whether the body is chunked, and its length or -1."""
    length = fields.get(b"content-length")
    if length is not None and (not length.isdigit() or len(length) > _MAX_LENGTH_DIGITS):
        raise BadResponseError(f"Content-Length is not a reasonable number: {length[:60]!r}")
    coding = fields.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or version != b"HTTP/1.1"):
        raise BadResponseError("a transfer coding other than 'chunked'")
    if status < 200 or status in _NO_BODY:
        return False, 0
    if coding is not None:
        return True, -1
    return False, -1 if length is None else int(length)


class HeadCache:
    __slots__ = ("heads",)

    def __init__(self) -> None:
        self.heads: dict[bytes, ResponseHead] = {}

    def parse(self, block: bytes) -> ResponseHead:
        head = self.heads.get(block)
        if head is None:
            head = parse_response_head(block)
            if len(self.heads) >= _MAX_CACHED:
                self.heads.clear()
            self.heads[block] = head
        return head


class ResponseReader:
    """Reads one response after another from a connection: `begin`, then `feed` until it
    `is_complete`."""

    __slots__ = (
        "_cache",
        "_decoder",
        "_held",
        "_is_head_request",
        "_left",
        "_num_informational",
        "body_start",
        "data",
        "has_excess",
        "head",
        "is_complete",
    )

    def __init__(self, cache: HeadCache) -> None:
        self._cache = cache
        self.begin()

    def begin(self, *, is_head_request: bool = False) -> None:
        self.head: ResponseHead | None = None
        self.is_complete = False
        self.has_excess = False
        """Bytes have come that do not belong to the response."""
        self.data = b""
        """What has arrived with the end of the head. The body begins at `body_start`."""
        self.body_start = 0
        self._is_head_request = is_head_request
        self._num_informational = 0
        self._held = b""
        """The beginning of the head."""
        self._left = 0
        self._decoder: ChunkedDecoder | None = None

    @property
    def ends_with_connection(self) -> bool:
        head = self.head
        return head is not None and head.content_length < 0 and not head.is_chunked

    def feed(self, data: bytes) -> bytes:
        """Returns what of the body has arrived. Raises BadResponseError."""
        if self.head is None:
            data = self._feed_head(data)
            if self.head is None:
                return b""
        if self.is_complete:
            self.has_excess = self.has_excess or bool(data)
            return b""
        if self._decoder is not None:
            return self._feed_chunks(self._decoder, data)
        if self._left >= 0:
            self._left -= len(data)
            if self._left < 0:
                raise BadResponseError("the response is longer than its Content-Length")
            self.is_complete = self._left == 0
        return data

    def _feed_head(self, data: bytes) -> bytes:
        """Returns what follows the head."""
        if self._held:
            data = self._held + data
            self._held = b""
        while True:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or end > _MAX_HEAD_BYTES:
                if len(data) > _MAX_HEAD_BYTES:
                    raise BadResponseError("the head of the response is too long")
                self._held = data
                return b""
            head = self._cache.parse(data[:end])
            if head.status >= 200:
                break
            self._num_informational += 1
            if self._num_informational > _MAX_INFORMATIONAL:
                raise BadResponseError("too many informational responses")
            data = data[end:]
        self.head = head
        self.data, self.body_start = data, end
        if self._is_head_request:
            self.is_complete = True
            self.data = data[:end]
        elif head.is_chunked:
            self._decoder = ChunkedDecoder(sys.maxsize, sys.maxsize)
        else:
            self._left = head.content_length
            self.is_complete = self._left == 0
            if self.is_complete and len(data) > end:
                raise BadResponseError("the response is longer than its Content-Length")
        return data[end:]

    def _feed_chunks(self, decoder: ChunkedDecoder, data: bytes) -> bytes:
        try:
            stop = decoder.feed(data)
        except ChunkError as error:
            raise BadResponseError(str(error)) from None
        piece = bytes(decoder.body)
        decoder.body.clear()
        self.is_complete = decoder.is_done
        self.has_excess = stop < len(data)
        return piece
