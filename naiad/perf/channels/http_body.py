"""Parses HTTP/1.1 responses from a byte stream, without I/O.

In:  `feed(data)`.
Out: (head, piece, is_last) for each piece of a body as it arrives. An empty body gives one empty
     last piece.

This is the full path. HttpChannel has a fast path for a response that arrives in one read.
"""

from __future__ import annotations

from collections.abc import Iterator

from naiad.perf.channels.http_head import BadResponseError, HeadCache, ResponseHead

_MAX_HEAD_BYTES = 1 << 20

Step = tuple[ResponseHead, bytes, bool]


class ResponseReader:
    __slots__ = ("_chunk_left", "_head", "_heads", "_held", "_left")

    def __init__(self, heads: HeadCache) -> None:
        self._heads = heads
        self._held = b""
        self._head: ResponseHead | None = None
        self._left = 0
        """Remaining bytes of a body with a known length."""
        self._chunk_left = 0
        """Remaining bytes of the current chunk and its line end; 0 between chunks, -1 in the
        trailers."""

    @property
    def is_between_responses(self) -> bool:
        return self._head is None and not self._held

    def begin(self, head: ResponseHead) -> None:
        """Starts the body of a response whose head is already parsed."""
        self._head = head
        self._left = head.content_length
        self._chunk_left = 0

    def feed(self, data: bytes) -> Iterator[Step]:
        if self._held:
            data = self._held + data
            self._held = b""
        while data or (self._head is not None and self._left == 0 and not self._head.is_chunked):
            head = self._head
            if head is None:
                data = self._parse_head(data)
                if self._held:
                    return
            elif head.is_chunked:
                piece, data, is_last = self._parse_chunk(data)
                if piece or is_last:
                    yield head, piece, is_last
                if self._held:
                    return
            elif self._left < 0:
                yield head, data, False
                return
            else:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                is_last = self._left == 0
                if is_last:
                    self._head = None
                yield head, piece, is_last

    def end_of_stream(self) -> ResponseHead | None:
        """Called when the connection closes.

        Returns the head of a response whose body ends with the connection. Returns None if a
        response was cut off or none was in progress.
        """
        head, self._head, self._held = self._head, None, b""
        if head is None or head.content_length >= 0 or head.is_chunked:
            return None
        return head

    def _parse_head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > _MAX_HEAD_BYTES:
                raise BadResponseError("response head larger than 1 MiB")
            self._held = data
            return b""
        head = self._heads.head(data[:end])
        if head.status >= 200:
            self.begin(head)
        return data[end + 4 :]

    def _parse_chunk(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Returns the content, the remaining data, and whether the body has ended."""
        if self._chunk_left == 0:
            line, line_end, rest = data.partition(b"\r\n")
            if not line_end:
                self._hold(data)
                return b"", b"", False
            try:
                size = int(line.split(b";", 1)[0], 16)
            except ValueError:
                raise BadResponseError(f"bad chunk size {line[:30]!r}") from None
            self._chunk_left = size + 2 if size else -1
            data = rest
        if self._chunk_left < 0:
            return self._parse_trailers(data)
        piece = data[: max(0, self._chunk_left - 2)]
        used = min(len(data), self._chunk_left)
        self._chunk_left -= used
        return piece, data[used:], False

    def _parse_trailers(self, data: bytes) -> tuple[bytes, bytes, bool]:
        if data.startswith(b"\r\n"):
            end = 2
        else:
            end = data.find(b"\r\n\r\n") + 4
            if end < 4:
                self._hold(data)
                return b"", b"", False
        self._head = None
        self._chunk_left = 0
        return b"", data[end:], True

    def _hold(self, data: bytes) -> None:
        if len(data) > _MAX_HEAD_BYTES:
            raise BadResponseError("chunk line larger than 1 MiB")
        self._held = data
