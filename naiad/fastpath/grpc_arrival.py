"""The last tensor of a large request on the fast path, while it arrives.

In:  chunks, or bytes that went straight into `sink()`, as MessageReader (transport/grpc/message.py)
     gets them; to the transport this is the reader of the call. Out: nothing; the call has the
     memory and is told when its stream ends, which is exactly when the memory is full.
Rule: bytes are counted in the server's ReceiveBudget as they arrive, and given back when all have
      arrived or the call ends.
"""

from __future__ import annotations

from naiad.transport.grpc.message import Message, ReceiveBudget


class Arrival:
    __slots__ = (
        "_budget",
        "_counted_bytes",
        "_memory",
        "_uncounted_bytes",
        "is_empty",
        "received_bytes",
        "start_ns",
    )

    def __init__(self, memory: memoryview, budget: ReceiveBudget, head_bytes: int) -> None:
        """`head_bytes` is the size of the message before the last tensor, which `memory` is for."""
        self._memory = memory
        self._budget = budget
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
        self._budget.charge(count)
        self._uncounted_bytes = 0
        self._counted_bytes += count
        self.received_bytes += num_bytes
        if self.received_bytes == len(self._memory):
            self.is_empty = True
            self.release()
        return []

    def release(self) -> None:
        self._budget.used_bytes -= self._counted_bytes
        self._counted_bytes = 0
