"""The clock that schedulers and instances use. It is passed in, so that tests can advance it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now_ns(self) -> int: ...

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer: ...

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Runs `callback` after the events that are ready now have been handled."""
        ...

    def yield_cpu(self) -> None:
        """Lets other threads and processes that are ready to run on this CPU run first."""
        ...


class LoopClock:
    """The monotonic clock and the timers of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now_ns = time.monotonic_ns
        self.call_soon = loop.call_soon
        self.yield_cpu = os.sched_yield

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, (when_ns - self.now_ns()) / 1e9), callback)
