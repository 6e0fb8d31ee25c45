"""Chunked request bodies: bytes in any pieces -> one body, strictly (RFC 9112, 7.1), without I/O.

Memory grows with the bytes received, not with their number of chunks or their claimed sizes.
The states are the table at the end of this docstring; anything that does not fit is a ChunkError.

    SIZE     "1a;ext CRLF"  -> DATA, or TRAILERS after "0"
    DATA     n bytes        -> DATA_END
    DATA_END "CRLF"         -> SIZE
    TRAILERS "name: v CRLF" -> TRAILERS; "CRLF" -> DONE
"""

from __future__ import annotations

import enum
import re

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_MAX_LINE_BYTES = 4096
_MAX_TRAILER_BYTES = 16 * 1024


class _State(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    TRAILERS = enum.auto()
    DONE = enum.auto()


class ChunkError(Exception):
    """The body is malformed or breaks a limit; the connection cannot be used any further."""


class BodyTooLargeError(ChunkError):
    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"the chunks have {num_bytes} bytes or more")
        self.num_bytes = num_bytes


class ChunkedDecoder:
    def __init__(self, max_body_bytes: int, max_chunks: int) -> None:
        self.body = bytearray()
        self._max_body_bytes = max_body_bytes
        self._max_chunks = max_chunks
        self._num_chunks = 0
        self._state = _State.SIZE
        self._missing_bytes = 0
        self._line = b""
        self._trailer_bytes = 0

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    def feed(self, data: bytes, start: int = 0) -> int:
        """Decodes `data` from `start` on. Returns the offset where the next request begins, or
        len(data) when the body needs more."""
        while start < len(data) and self._state is not _State.DONE:
            start = (
                self._decode_data(data, start)
                if self._state is _State.DATA
                else self._decode_line(data, start)
            )
        return start

    def _decode_data(self, data: bytes, start: int) -> int:
        end = min(len(data), start + self._missing_bytes)
        self.body += memoryview(data)[start:end]
        self._missing_bytes -= end - start
        if self._missing_bytes == 0:
            self._state = _State.DATA_END
        return end

    def _decode_line(self, data: bytes, start: int) -> int:
        end = data.find(b"\n", start)
        stop = len(data) if end < 0 else end + 1
        if len(self._line) + stop - start > _MAX_LINE_BYTES:
            raise ChunkError("malformed request: chunk size or trailer line is too long")
        self._line += data[start:stop]
        if end >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise ChunkError(
                    "malformed request: line of the chunked body does not end with CRLF"
                )
            self._on_line(line[:-2])
        return stop

    def _on_line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._on_size(line)
        elif self._state is _State.DATA_END:
            if line:
                raise ChunkError("malformed request: chunk is longer than its size")
            self._state = _State.SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _MAX_TRAILER_BYTES:
                raise ChunkError("malformed request: trailers are too long")
        else:
            self._state = _State.DONE

    def _on_size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise ChunkError("malformed request: invalid chunk size")
        size = int(match[1], 16)
        if size == 0:
            self._state = _State.TRAILERS
            return
        self._num_chunks += 1
        if self._num_chunks > self._max_chunks:
            raise ChunkError(
                f"Chunked request body exceeds maximum of {self._max_chunks} non-empty chunks. "
                "Send fewer or larger HTTP chunks."
            )
        if len(self.body) + size > self._max_body_bytes:
            raise BodyTooLargeError(len(self.body) + size)
        self._missing_bytes = size
        self._state = _State.DATA
