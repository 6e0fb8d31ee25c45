"""Collects what goes to another process, so that one message carries many requests or responses.

A message costs a system call and wakes its receiver, whatever it carries. The outbox sends at the
end of a turn of the event loop; while more arrives in each turn, it waits for some turns. A turn
without work takes microseconds, so a lone item is not held up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
ENOUGH = 32
"""Items that are sent without waiting."""
MAX_TURNS = 4


class Outbox(Generic[T]):
    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._send = send
        self._items: list[T] = []
        self._num_seen = 0
        """The number of items when the last turn ended."""
        self._num_turns = 0
        self._is_due = False

    def add(self, item: T) -> None:
        self._items.append(item)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)
        elif len(self._items) >= ENOUGH:
            self.flush()

    def flush(self) -> None:
        """Sends everything now."""
        items, self._items = self._items, []
        self._num_seen = self._num_turns = 0
        if items:
            self._send(items)

    def _end_turn(self) -> None:
        size = len(self._items)
        if self._num_seen < size and size > 1 and self._num_turns < MAX_TURNS:
            self._num_seen = size
            self._num_turns += 1
            self._loop.call_soon(self._end_turn)
            return
        self._is_due = False
        self.flush()
