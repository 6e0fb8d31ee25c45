"""Bodies that are still being received: the memory for their bytes, and when they are complete.

A body of known length is received straight into the memory that is used later (`rest` is what the
socket fills next); a chunked body is decoded from copies.
Rule: memory is committed as bytes arrive, whatever length was announced.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np

from naiad.core.tensor import Buffer
from naiad.transport.http1.chunked import ChunkedDecoder
from naiad.transport.http1.head import Head

if TYPE_CHECKING:
    from naiad.core.identity import Identity

LOST_BYTES = 64 * 1024
"""How much of the beginning of a lost body is looked at, and as much of its end."""


class FixedBody:
    __slots__ = ("_is_large", "_memory", "head", "num_bytes", "rest", "start_ns")

    def __init__(self, head: Head, large_body_bytes: int) -> None:
        self.head = head
        self.start_ns = monotonic_ns()
        self._is_large = head.content_length > large_body_bytes
        self._memory = self._allocate(head)
        self.rest: memoryview = self._memory
        self.num_bytes = 0

    def _allocate(self, head: Head) -> memoryview:
        """Only reserves memory: no page is touched before bytes are written to it."""
        if self._is_large and head.route.body_buffer is not None:
            memory = head.route.body_buffer(head.content_length)
            if memory is not None:
                return memory
        return np.empty(head.content_length, np.uint8).data

    def feed(self, data: bytes, start: int) -> int:
        """Copies the part of the body that was read together with the head. Returns the offset in
        `data` after that part."""
        size = min(len(self.rest), len(data) - start)
        self.rest[:size] = memoryview(data)[start : start + size]
        self.advance(size)
        return start + size

    def advance(self, num_bytes: int) -> bool:
        """The socket has filled `num_bytes` of `rest`. Returns True when the body is complete."""
        self.num_bytes += num_bytes
        self.rest = self.rest[num_bytes:]
        return len(self.rest) == 0

    @property
    def is_complete(self) -> bool:
        return len(self.rest) == 0

    def content(self) -> Buffer:
        return self._memory if self._is_large else self._memory.tobytes()

    def received(self) -> bytes:
        return _ends(self._memory[: self.num_bytes])


def _ends(data: memoryview) -> bytes:
    return bytes(data[:LOST_BYTES]) + bytes(data[max(LOST_BYTES, len(data) - LOST_BYTES) :])


class LostBody:
    """What arrives of the body of a request that was refused or lost, for those who must know what
    it was for."""

    __slots__ = ("_identity", "_is_known", "_on_lost", "_seen")

    def __init__(self, head: Head, identity: Identity | None) -> None:
        self._on_lost = head.route.on_lost
        self._identity = identity
        self._is_known = self._on_lost is None
        self._seen = bytearray()

    def feed(self, data: Buffer) -> None:
        if self._is_known or not len(data) or self._on_lost is None:
            return
        self._seen += data
        if len(self._seen) > 2 * LOST_BYTES:  # the end of a JSON text tells as much
            del self._seen[LOST_BYTES:-LOST_BYTES]
        self._is_known = self._on_lost(bytes(self._seen), self._identity)


class SkippedBody:
    """The body of a request that was refused: its bytes are counted and dropped."""

    __slots__ = ("_lost", "head", "num_bytes")

    def __init__(self, head: Head, lost: LostBody) -> None:
        self.head = head
        self._lost = lost
        self.num_bytes = 0

    def feed(self, data: bytes, start: int) -> int:
        size = min(self.head.content_length - self.num_bytes, len(data) - start)
        self.num_bytes += size
        self._lost.feed(data[start : start + size])
        return start + size

    @property
    def is_complete(self) -> bool:
        return self.num_bytes == self.head.content_length


class ChunkedBody:
    __slots__ = ("_decoder", "_large_body_bytes", "head", "max_bytes", "start_ns")

    def __init__(self, head: Head, max_bytes: int, max_chunks: int, large_body_bytes: int) -> None:
        self.head = head
        self.start_ns = monotonic_ns()
        self.max_bytes = max_bytes
        self._decoder = ChunkedDecoder(max_bytes, max_chunks)
        self._large_body_bytes = large_body_bytes

    def feed(self, data: bytes, start: int) -> int:
        return self._decoder.feed(data, start)

    @property
    def num_bytes(self) -> int:
        return len(self._decoder.body)

    @property
    def is_complete(self) -> bool:
        return self._decoder.is_done

    def received(self) -> bytes:
        return _ends(memoryview(self._decoder.body))

    def content(self) -> Buffer:
        body = self._decoder.body
        if len(body) > self._large_body_bytes:
            # The memory budget can watch the life of an array, not that of a bytearray.
            return np.frombuffer(body, np.uint8).data
        return bytes(body)
