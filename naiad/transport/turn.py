"""Limits how long the connections of an endpoint compute within one turn of the event loop.

In:  `is_over`, which connections ask before they handle what they have read. Out: a connection that
     must wait is resumed in a later turn, in the order in which they began to wait.
Rule: the fast path does not ask for short reads. The clock is read only for requests on the full
      path, which cost a hundred times as much.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_TURN_S: Final = 0.005


class Turn:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._start_s = 0.0
        """When the first connection asked in this turn; 0 when none has."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_resuming = False

    def is_over(self, loop: asyncio.AbstractEventLoop) -> bool:
        """True if the connection must `wait`: the time is used up, or others wait already."""
        if not self._start_s:
            self._start_s = self._clock_s()
            loop.call_soon(self._begin, loop)
            return False
        if self._waiting and not self._is_resuming:
            return True
        return self._clock_s() - self._start_s > MAX_TURN_S

    def wait(self, resume: Callable[[], None]) -> None:
        """`resume` is called once, in a later turn. Only after `is_over`."""
        self._waiting.append(resume)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins a turn: what `call_soon` was given runs when all reads of a turn are done."""
        if not self._waiting:
            self._start_s = 0.0
            return
        start_s = self._start_s = self._clock_s()
        self._is_resuming = True
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if self._clock_s() - start_s > MAX_TURN_S:
                    break
        finally:
            self._is_resuming = False
            loop.call_soon(self._begin, loop)
