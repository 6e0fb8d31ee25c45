"""What has arrived of a large message that came the short way (grpc_repeat.py): to the rest of the
transport, the reader of its call.

In:  chunks, or bytes that went straight into `sink()`, as MessageReader (grpc_message.py) takes
     them. Out: nothing; the call knows the memory and is told when its stream ends, which is
     exactly when the memory is full.
Rule: bytes are counted in the server's ReceiveBudget as they arrive, and given back when all are
      there or the call ends.
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
    )

    def __init__(self, memory: memoryview, budget: ReceiveBudget, head_bytes: int) -> None:
        self._memory = memory
        self._budget = budget
        self._uncounted_bytes = head_bytes
        """Of the message, before what the memory is for: they wait with it."""
        self._counted_bytes = 0
        self.received_bytes = 0
        self.is_empty = False
        """No message is incomplete, as MessageReader has it."""

    def feed(self, chunk: bytes | memoryview) -> list[Message]:
        """Raises GrpcError when the server holds too much already."""
        start = self.received_bytes
        self._memory[start : start + len(chunk)] = chunk
        return self.filled(len(chunk))

    def sink(self) -> memoryview | None:
        return None if self.is_empty else self._memory[self.received_bytes :]

    def filled(self, num_bytes: int) -> list[Message]:
        count = num_bytes + self._uncounted_bytes
        self._budget.take(count)
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
