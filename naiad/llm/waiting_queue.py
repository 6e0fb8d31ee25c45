"""A queue of sequences that hold neither blocks nor a slot, in order of rank. Cancelled sequences
are removed when they reach the head."""

from __future__ import annotations

import heapq

from naiad.llm.sequence import Sequence, Status


class WaitingQueue:
    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (sequence.rank, sequence))
        self._count += 1

    def peek(self) -> Sequence | None:
        while self._heap:
            sequence = self._heap[0][1]
            if sequence.status is Status.WAITING:
                return sequence
            heapq.heappop(self._heap)
        return None

    def pop(self) -> Sequence:
        self._count -= 1
        return heapq.heappop(self._heap)[1]

    def drop(self) -> None:
        """Counts out a sequence that was finished while it waited; it leaves the heap later."""
        self._count -= 1
