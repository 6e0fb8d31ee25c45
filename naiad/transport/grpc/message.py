"""Reads length-prefixed messages from a stream's bytes.

In:  `feed(chunk)` as DATA arrives, or `filled(n)` after bytes went straight into `sink()`. Out:
     complete messages, in order.
Rule: memory follows what was really received. A prefix that announces 2 GB allocates nothing; the
      message's own buffer is allocated when 1/256 of it has arrived, and every byte is charged to
      the connection's account as it arrives. The memory of a large message stays charged until it
      is gone; whoever gets a small one charges it again.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TypeAlias

import numpy as np

from naiad.core.memory_budget import SMALL_BYTES, MemoryAccount
from naiad.transport.grpc.status import GrpcError, Status, memory_full

Buffer: TypeAlias = bytes | bytearray | memoryview
Message: TypeAlias = tuple[bool, Buffer]
"""Whether the message is compressed, and its bytes."""
Allocate: TypeAlias = Callable[[bytes, int], memoryview | None]
"""(first bytes of the message, its length) -> writable memory of that length, or None to use
ordinary memory."""

PREFIX_BYTES = 5
ALLOCATE_RATIO = 256
"""The buffer of a message is allocated when one byte in this many has arrived: with the first read
of 64 KiB for messages up to 16 MiB. Pages are committed only as bytes arrive."""
_FIRST_BYTES = 4096


def ordinary_memory(num_bytes: int) -> memoryview:
    """The memory is not zeroed, so pages that never receive anything are never touched."""
    return np.empty(num_bytes, np.uint8).data


class MessageReader:
    __slots__ = (
        "_account", "_allocate", "_counted_bytes", "_filled", "_is_compressed", "_length",
        "_max_bytes", "_offset", "_start", "_target", "start_ns",
    )  # fmt: skip

    def __init__(
        self, max_message_bytes: int, account: MemoryAccount, allocate: Allocate | None = None
    ) -> None:
        self._max_bytes = max_message_bytes
        self._account = account
        self._allocate = allocate
        self._counted_bytes = 0
        self._is_compressed = False
        self.start_ns = 0
        """When the first bytes of the last message arrived, on the monotonic clock; 0 when it
        arrived in one piece."""
        self._length = -1
        """The length of the message in progress; -1 while its prefix is incomplete."""
        self._start = bytearray()
        """The first bytes of the message, or of its prefix, until `_target` is allocated."""
        self._target: memoryview | None = None
        self._filled = 0
        self._offset = 0
        """Where the message in progress begins or goes on in the chunk that is read."""

    @property
    def is_empty(self) -> bool:
        """True between messages, where a stream may end."""
        return self._length < 0 and not self._start

    def beginning(self, chunk: bytes | memoryview = b"") -> bytes:
        """The first bytes of the message in progress. `chunk` is what `feed` has failed with."""
        start = self._start if self._target is None else self._target[: self._filled]
        return bytes(start[:SMALL_BYTES]) + bytes(chunk[self._offset :][:SMALL_BYTES])

    @property
    def is_compressed(self) -> bool:
        return self._is_compressed

    @property
    def received_bytes(self) -> int:
        """Bytes of the message in progress; they show whether anything still arrives."""
        return self._filled + len(self._start)

    def feed(self, chunk: bytes | memoryview) -> list[Message]:
        """Raises GrpcError for a message that is too large or malformed; the reader is useless
        after that."""
        messages: list[Message] = []
        offset, end = 0, len(chunk)
        self._offset = 0
        while offset < end:
            if self._length < 0:
                offset = self._read_prefix(chunk, offset)
                if self._length < 0:
                    break
            if not self._filled and not self._start and end - offset >= self._length:
                self.start_ns = 0
                message = chunk[offset : offset + self._length]
                # A small view would keep the whole read buffer alive.
                messages.append(
                    (
                        self._is_compressed,
                        bytes(message) if self._length <= _FIRST_BYTES else message,
                    )
                )
                offset += self._length
                self._length = -1
                continue
            offset = self._store(chunk, offset, messages)
        if self._length == 0:
            messages.append((self._is_compressed, b""))
            self._length = -1
        return messages

    def sink(self) -> memoryview | None:
        """Memory for all missing bytes of the message in progress."""
        return None if self._target is None else self._target[self._filled :]

    def filled(self, num_bytes: int) -> list[Message]:
        self._count(num_bytes)
        self._filled += num_bytes
        messages: list[Message] = []
        if self._filled == self._length:
            self._finish(messages)
        return messages

    def release(self) -> None:
        """Drops the message in progress."""
        self._account.release(self._counted_bytes)
        self._counted_bytes = 0
        self._target = None
        self._start = bytearray()

    def _read_prefix(self, chunk: bytes | memoryview, offset: int) -> int:
        missing = PREFIX_BYTES - len(self._start)
        if not self._start and len(chunk) - offset >= PREFIX_BYTES:
            prefix: Buffer = chunk[offset : offset + PREFIX_BYTES]
        else:
            self._start += chunk[offset : offset + missing]
            if len(self._start) < PREFIX_BYTES:
                return len(chunk)
            prefix, self._start = self._start, bytearray()
        if prefix[0] > 1:
            raise GrpcError(
                Status.INTERNAL,
                f"bad message prefix: compressed flag is {prefix[0]}, expected 0 or 1",
            )
        length = int.from_bytes(prefix[1:], "big")
        self._offset = offset + missing
        if length > self._max_bytes:
            raise GrpcError(
                Status.RESOURCE_EXHAUSTED,
                f"received message larger than max ({length} vs. {self._max_bytes})",
            )
        self._is_compressed = prefix[0] == 1
        self._length = length
        return offset + missing

    def _store(self, chunk: bytes | memoryview, offset: int, messages: list[Message]) -> int:
        have = self._filled or len(self._start)
        if not have:
            self.start_ns = monotonic_ns()
        stop = min(len(chunk), offset + self._length - have)
        num_bytes = stop - offset
        self._count(num_bytes)
        if (
            self._target is None
            and self._length > SMALL_BYTES
            and (have + num_bytes) * ALLOCATE_RATIO >= self._length
        ):
            self._allocate_target(chunk[offset:stop])
        if self._target is None:
            self._start += chunk[offset:stop]
        else:
            self._target[self._filled : self._filled + num_bytes] = chunk[offset:stop]
            self._filled += num_bytes
        if have + num_bytes == self._length:
            self._finish(messages)
        return stop

    def _allocate_target(self, chunk: bytes | memoryview) -> None:
        start = self._start
        first = bytes(start[:_FIRST_BYTES]) + bytes(chunk[: max(0, _FIRST_BYTES - len(start))])
        target = (
            self._allocate(first, self._length)
            if self._allocate is not None and not self._is_compressed
            else None
        )
        self._target = ordinary_memory(self._length) if target is None else target
        self._target[: len(start)] = start
        self._filled = len(start)
        self._start = bytearray()

    def _finish(self, messages: list[Message]) -> None:
        message: Buffer
        if self._target is None:
            message = bytes(self._start)
        else:
            message = self._target
            self._account.hold(message, self._counted_bytes)
            self._counted_bytes = 0
        messages.append((self._is_compressed, message))
        self.release()
        self._filled = 0
        self._length = -1

    def _count(self, num_bytes: int) -> None:
        if not self._account.charge(num_bytes):
            raise memory_full()
        self._counted_bytes += num_bytes
