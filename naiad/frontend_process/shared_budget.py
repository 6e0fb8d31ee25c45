"""One memory budget over the server process and all frontend processes.

Every process writes the bytes that it holds, and how often it has refused some, to places of its
own in a shared page, and counts the bytes of all others as used. Two processes that reserve at the
same moment may exceed the budget together by what they reserve; nothing waits for a lock.
"""

from __future__ import annotations

import mmap

from naiad.core.memory_budget import MemoryBudget

_PLACE_BYTES = 8


class SharedPage:
    """It is made before the processes are forked."""

    def __init__(self, num_places: int) -> None:
        self._memory = mmap.mmap(-1, max(2 * num_places * _PLACE_BYTES, mmap.PAGESIZE))
        numbers = memoryview(self._memory).cast("q")
        self.places = numbers[:num_places]
        """The bytes that each process holds."""
        self.num_refused = numbers[num_places : 2 * num_places]
        """These stay when a process is gone; its successor counts on."""


class SharedBudget(MemoryBudget):
    """The part of one process. Place 0 is the server's."""

    def __init__(self, limit_bytes: int, page: SharedPage, place: int) -> None:
        self._total_bytes = limit_bytes
        self._places = page.places
        self._num_refused = page.num_refused
        self._place = place
        num_refused = self.num_refused
        super().__init__(limit_bytes)
        self.num_refused = num_refused

    @property
    def used_bytes(self) -> int:
        """The bytes that this process holds."""
        return self._places[self._place]

    @used_bytes.setter
    def used_bytes(self, num_bytes: int) -> None:
        self._places[self._place] = num_bytes

    @property
    def limit_bytes(self) -> int:
        """What the other processes leave to this one."""
        return max(self._total_bytes - sum(self._places) + self._places[self._place], 0)

    @limit_bytes.setter
    def limit_bytes(self, num_bytes: int) -> None:
        self._total_bytes = num_bytes

    @property
    def num_refused(self) -> int:
        return self._num_refused[self._place]

    @num_refused.setter
    def num_refused(self, num_refused: int) -> None:
        self._num_refused[self._place] = num_refused

    @property
    def total_num_refused(self) -> int:
        return sum(self._num_refused)

    @property
    def total_limit_bytes(self) -> int:
        return self._total_bytes

    @property
    def total_used_bytes(self) -> int:
        return sum(self._places)

    def forget(self, place: int) -> None:
        """The process at this place is gone, and its memory with it."""
        self._places[place] = 0
