"""Encodes and decodes gRPC's length-prefixed messages."""

from __future__ import annotations

import gzip
import zlib

PREFIX_BYTES = 5


def frame(message: bytes, encoding: str = "") -> bytes:
    if encoding == "gzip":
        message = gzip.compress(message, 6)
    elif encoding == "deflate":
        message = zlib.compress(message, 6)
    return (b"\x01" if encoding else b"\x00") + len(message).to_bytes(4, "big") + message


class MessageAssembler:
    """Splits the bytes of one stream into messages. Responses are never compressed, because the
    client does not offer to accept compression."""

    __slots__ = ("_held", "_needed")

    def __init__(self) -> None:
        self._held: list[bytes | memoryview] = []
        self._needed = 0
        """Number of bytes missing from the held message; 0 if nothing is held."""

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        if self._held:
            self._held.append(bytes(data))
            if len(data) < self._needed:
                self._needed -= len(data)
                return []
            data = b"".join(self._held)
            self._held = []
        messages: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= PREFIX_BYTES:
            stop = start + _framed_size(data, start)
            if stop > end:
                break
            messages.append(bytes(data[start + PREFIX_BYTES : stop]))
            start = stop
        if start < end:
            self._held = [bytes(data[start:])]
            has_prefix = end - start >= PREFIX_BYTES
            size = _framed_size(data, start) if has_prefix else PREFIX_BYTES
            self._needed = size - (end - start)
        return messages


def _framed_size(data: bytes | memoryview, start: int) -> int:
    """Returns the size of the message at `start`, with its prefix."""
    return PREFIX_BYTES + int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big")
