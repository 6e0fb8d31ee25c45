"""Time as schedulers and supervisors see it: passed in, so that tests advance it by hand."""

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
        """After the events that are ready now have been handled."""
        ...

    def yield_cpu(self) -> None:
        """Whoever else is ready to run on this CPU goes first."""
        ...


class LoopClock:
    """The monotonic clock and timers of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now_ns = time.monotonic_ns
        self.call_soon = loop.call_soon
        self.yield_cpu = os.sched_yield

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, (when_ns - self.now_ns()) / 1e9), callback)
