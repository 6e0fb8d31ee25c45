"""Collects what goes to another process, so that one message carries many requests or responses.

A message costs a system call and wakes its receiver, whatever it carries. The outbox sends at the
end of a turn of the event loop; while more arrives in each turn, it waits for some turns. A turn
without work takes microseconds, so a lone item is not held up.

A receiver that has more to do than it can is not helped by many small messages: it would read them
later anyway. While it has left the last message unread for longer than it takes to wake up, items
are kept, and travel together when it has read it. So messages grow with the load of the receiver.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
ENOUGH = 32
"""Items that are sent without waiting."""
MAX_TURNS = 4
WAKE_UP_S = 0.0002
"""A receiver that has nothing to do reads a message within this time."""
MAX_KEPT_S = 0.001
"""How long items are kept at most for a receiver that is busy."""


class Outbox(Generic[T]):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[list[T]], None],
        has_unread: Callable[[], bool] = lambda: False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_unread` tells whether the receiver has not read everything yet."""
        self._loop = loop
        self._send = send
        self._has_unread = has_unread
        self._now_s = now_s
        self._items: list[T] = []
        self._num_seen = 0
        """The number of items when the last turn ended."""
        self._num_turns = 0
        self._is_due = False
        self._sent_s = 0.0
        self._keeping: asyncio.TimerHandle | None = None

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
        if self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None
        if items:
            self._sent_s = self._now_s()
            self._send(items)

    def resume(self) -> None:
        """The receiver has sent something, so it may have read the last message."""
        if self._keeping is not None and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        size = len(self._items)
        if self._num_seen < size and size > 1 and self._num_turns < MAX_TURNS:
            self._num_seen = size
            self._num_turns += 1
            self._loop.call_soon(self._end_turn)
            return
        self._is_due = False
        if 0 < size < ENOUGH and self._is_receiver_busy():
            if self._keeping is None:
                self._keeping = self._loop.call_later(MAX_KEPT_S, self.flush)
            return
        self.flush()

    def _is_receiver_busy(self) -> bool:
        return self._now_s() - self._sent_s > WAKE_UP_S and self._has_unread()
