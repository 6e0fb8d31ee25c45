"""Which shared memory of the server an address lies in, whoever owns it: so that it can be handed
on to another worker uncopied.

Arenas and lent slots enter what they map and take it out again; `watchers` of a range are told when
it goes. Only the server has one: a worker knows nobody else to hand memory on to.
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
        """The owner's: who needs it for longer than the range is listed makes a copy."""
        self.watchers: list[Callable[[SharedRange], None]] = []


class SlotDirectory:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[SharedRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, start: int, size: int, fd: int) -> None:
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._ranges.insert(at, SharedRange(start, size, fd))

    def remove(self, start: int) -> None:
        at = bisect_right(self._starts, start) - 1
        del self._starts[at]
        gone = self._ranges.pop(at)
        for watcher in gone.watchers:
            watcher(gone)

    def find(self, start: int, size: int) -> SharedRange | None:
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        found = self._ranges[at]
        return found if start + size <= found.start + found.size else None
