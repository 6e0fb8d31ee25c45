"""gRPC's length-prefixed messages: one prebuilt for sending, and those of a stream's bytes put
together again."""

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
    """Bytes of one stream -> its messages. Answers are never compressed: we do not offer to accept
    that."""

    __slots__ = ("_held", "_needed")

    def __init__(self) -> None:
        self._held: list[bytes | memoryview] = []
        self._needed = 0
        """Bytes that are missing before the next message is complete; 0 when nothing is held."""

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        if self._held:
            self._held.append(bytes(data))
            if len(data) < self._needed:
                self._needed -= len(data)
                return []
            data = b"".join(self._held)
            self._held = []
        messages: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= PREFIX_BYTES:
            stop = at + PREFIX_BYTES + int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
            if stop > end:
                break
            messages.append(bytes(data[at + PREFIX_BYTES : stop]))
            at = stop
        if at < end:
            self._held = [bytes(data[at:])]
            whole = (
                PREFIX_BYTES
                if end - at < PREFIX_BYTES
                else PREFIX_BYTES + int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
            )
            self._needed = whole - (end - at)
        return messages
