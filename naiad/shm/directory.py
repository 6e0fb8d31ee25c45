"""Finds the shared memory that contains an address, so that it can be lent on without a copy.

Arenas and lent slots add and remove the ranges that they map. The `watchers` of a range are called
when it is removed. Only the server has a directory: a worker has no other process to lend to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable


class SharedRange:
    __slots__ = ("fd", "size", "start", "watchers")

    def __init__(self, start: int, size: int, fd: int) -> None:
        self.start = start
        self.size = size
        self.fd = fd
        """The owner's descriptor. It is valid only while the range is in the directory."""
        self.watchers: list[Callable[[SharedRange], None]] = []


class SlotDirectory:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[SharedRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, start: int, size: int, fd: int) -> None:
        index = bisect_right(self._starts, start)
        self._starts.insert(index, start)
        self._ranges.insert(index, SharedRange(start, size, fd))

    def remove(self, start: int) -> None:
        index = bisect_right(self._starts, start) - 1
        del self._starts[index]
        removed = self._ranges.pop(index)
        for watcher in removed.watchers:
            watcher(removed)

    def find(self, start: int, size: int) -> SharedRange | None:
        index = bisect_right(self._starts, start) - 1
        if index < 0:
            return None
        candidate = self._ranges[index]
        return candidate if start + size <= candidate.start + candidate.size else None
