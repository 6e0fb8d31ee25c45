"""The last tensor of a large request on the fast path, while it arrives.

In:  chunks, or bytes that went straight into `sink()`, as MessageReader (transport/grpc/message.py)
     gets them; to the transport this is the reader of the call. Out: nothing; the call has the
     memory and is told when its stream ends, which is exactly when the memory is full.
Rule: bytes are charged to the connection's account as they arrive. They are given back when the
      memory is gone, or when the call ends before all have arrived.
"""

from __future__ import annotations

from naiad.core.memory_budget import MemoryAccount
from naiad.transport.grpc.message import Message
from naiad.transport.grpc.status import memory_full


class Arrival:
    __slots__ = (
        "_account",
        "_counted_bytes",
        "_memory",
        "_uncounted_bytes",
        "is_empty",
        "received_bytes",
        "start_ns",
    )

    def __init__(self, memory: memoryview, account: MemoryAccount, head_bytes: int) -> None:
        """`head_bytes` is the size of the message before the last tensor, which `memory` is for."""
        self._memory = memory
        self._account = account
        self._uncounted_bytes = head_bytes
        """The beginning of the message waits as long as its last tensor does."""
        self._counted_bytes = 0
        self.received_bytes = 0
        self.is_empty = False
        """True when no message is incomplete."""
        self.start_ns = 0
        """The fast path does not record when a message began to arrive: it is never traced."""

    def feed(self, chunk: bytes | memoryview) -> list[Message]:
        """Raises GrpcError when the server holds too much already."""
        start = self.received_bytes
        self._memory[start : start + len(chunk)] = chunk
        return self.filled(len(chunk))

    def sink(self) -> memoryview | None:
        return None if self.is_empty else self._memory[self.received_bytes :]

    def filled(self, num_bytes: int) -> list[Message]:
        count = num_bytes + self._uncounted_bytes
        if not self._account.charge(count):
            raise memory_full()
        self._uncounted_bytes = 0
        self._counted_bytes += count
        self.received_bytes += num_bytes
        if self.received_bytes == len(self._memory):
            self.is_empty = True
            self._account.hold(self._memory, self._counted_bytes)
            self._counted_bytes = 0
        return []

    def release(self) -> None:
        self._account.release(self._counted_bytes)
        self._counted_bytes = 0
