"""Wakes the event loop at a monotonic time with a precision of tens of microseconds.

uvloop's timers have a precision of one millisecond. On Linux a timerfd is used instead, elsewhere
the timer of the loop.
Rule: a timer never fires early. The load records how late it fires.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1


class WakeTimer(Protocol):
    def set(self, at_ns: int) -> None:
        """Sets the time of the next call, instead of any time set before."""

    def close(self) -> None: ...


def make_timer(callback: Callable[[], None]) -> WakeTimer:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return FdTimer(callback)
    return LoopTimer(callback)


class _Itimerspec(ctypes.Structure):
    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    ]


class FdTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        libc: Any = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._spec = _Itimerspec()
        self._pointer = ctypes.byref(self._spec)
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._fire)

    def set(self, at_ns: int) -> None:
        self._spec.value_s, self._spec.value_ns = divmod(max(1, at_ns), 1_000_000_000)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._pointer, None)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fire(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
            self._callback()


class LoopTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_ns: int) -> None:
        self.close()
        self._handle = self._loop.call_later(
            max(0, at_ns - time.monotonic_ns()) / 1e9, self._callback
        )

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
