"""Measures how long the event loop keeps everybody waiting.

A timer notes how late it runs: while one callback computes, no timer runs. Wall-clock lateness also
grows when the machine is busy with other processes, so the time that the loop's own thread has
computed meanwhile is noted as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

_INTERVAL_S = 0.02
_WINDOW_S = 60.0


class LoopTimes(Protocol):
    """What is known of an event loop, or of several: the longest times."""

    @property
    def max_lag_s(self) -> float: ...

    @property
    def max_busy_s(self) -> float: ...


class LongestOf:
    """The times of several event loops as those of one."""

    def __init__(self, *loops: LoopTimes) -> None:
        self._loops = loops

    @property
    def max_lag_s(self) -> float:
        return max(loop.max_lag_s for loop in self._loops)

    @property
    def max_busy_s(self) -> float:
        return max(loop.max_busy_s for loop in self._loops)


class LoopLag:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_busier: Callable[[], None] | None = None
    ) -> None:
        """`on_busier` is called when `max_busy_s` has risen."""
        self._loop = loop
        self._on_busier = on_busier
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._cpu_s = 0.0
        self._window_end_s = 0.0
        self._previous_s = 0.0
        self._current_s = 0.0
        self.max_busy_s = 0.0
        """The most that the loop's thread has computed while a timer was due, since the start."""

    @property
    def max_lag_s(self) -> float:
        """The most that a timer was late within the last one or two minutes."""
        return max(self._previous_s, self._current_s)

    def start(self) -> None:
        self._window_end_s = self._loop.time() + _WINDOW_S
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._measure()
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._cpu_s = time.thread_time()
        self._due_s = self._loop.time() + _INTERVAL_S
        self._timer = self._loop.call_at(self._due_s, self._on_timer)

    def _on_timer(self) -> None:
        self._measure()
        self._schedule()

    def _measure(self) -> None:
        # The loop's own clock is read once per turn, before the callbacks.
        lag_s = max(0.0, time.monotonic() - self._due_s)
        busy_s = min(lag_s, time.thread_time() - self._cpu_s)
        if busy_s > self.max_busy_s:
            self.max_busy_s = busy_s
            if self._on_busier is not None:
                self._on_busier()
        if self._due_s > self._window_end_s:
            self._previous_s, self._current_s = self._current_s, 0.0
            self._window_end_s = self._due_s + _WINDOW_S
        self._current_s = max(self._current_s, lag_s)
