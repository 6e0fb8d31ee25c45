"""Gives memory that glibc keeps after large requests back to the system.

In:  the memory budget, which knows the peaks, and a call every few seconds. Out: malloc_trim, in a
     thread.
Rule: steady traffic is never trimmed, because its memory would only be faulted in again. A trim is
      due when the peak of the last interval is far below an earlier one, or after work is over.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

from naiad.core.memory_budget import MemoryBudget

MIN_FREED_BYTES = 32 * 1024 * 1024
MIN_GROWN_BYTES = 8 * 1024 * 1024
_MAX_DELAY_S = 60.0
_IDLE_SHARE = 0.1
"""A process that computes for less than this part of the time is idle."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 1024 * 1024
_KEPT_BYTES = 4 * 1024 * 1024


def limit_kept_memory() -> None:
    """Makes glibc return blocks of 1 MiB and more when they are freed. By default it raises that
    limit to 32 MiB as such blocks are freed, and malloc_trim does not reach what the heaps of
    threads then keep."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def give_back_memory() -> None:
    """Returns to the system what is free now, before a fork would keep a copy of it."""
    _find_malloc_trim()()


class MemoryTrim:
    def __init__(self, budget: MemoryBudget, trim: Callable[[], None] | None = None) -> None:
        """`trim` stands in for malloc_trim."""
        self._budget = budget
        self._trim = trim or _find_malloc_trim()
        self._high_bytes = 0
        """The highest peak since the last trim."""

    def due(self) -> Callable[[], None] | None:
        """Called every few seconds. Returns what must be run in a thread, if anything."""
        peak_bytes = self._budget.pop_peak()
        self._high_bytes = max(self._high_bytes, peak_bytes)
        if self._high_bytes - peak_bytes < MIN_FREED_BYTES or peak_bytes > self._high_bytes // 2:
            return None
        self._high_bytes = peak_bytes
        return self._trim


class IdleTrim:
    """For a process that holds memory which no budget counts, such as what waits for another
    process. A trim is due while the process is larger than it was, and idle. What is in use cannot
    be trimmed, so a trim that frees nothing is repeated after growing delays."""

    def __init__(
        self,
        trim: Callable[[], None] | None = None,
        resident_bytes: Callable[[], int] | None = None,
        now_s: Callable[[], float] = time.monotonic,
        computed_s: Callable[[], float] = time.process_time,
    ) -> None:
        """The arguments stand in for the machine."""
        self._malloc_trim = trim or _find_malloc_trim()
        self._resident_bytes = resident_bytes or _resident_bytes
        self._now_s, self._computed_s = now_s, computed_s
        self._least_bytes = self._resident_bytes()
        self._looked = now_s(), computed_s()
        self._delay_s = self._next_s = 0.0

    def due(self) -> Callable[[], None] | None:
        """Called every few seconds. Returns what must be run in a thread, if anything."""
        (then_s, before_s), self._looked = self._looked, (self._now_s(), self._computed_s())
        if self._looked[1] - before_s > _IDLE_SHARE * (self._looked[0] - then_s):
            return None
        if self._resident_bytes() - self._least_bytes < MIN_GROWN_BYTES:
            self._delay_s = self._next_s = 0.0
            return None
        return self._trim if self._looked[0] >= self._next_s else None

    def _trim(self) -> None:
        self._malloc_trim()
        self._least_bytes = min(self._least_bytes, self._resident_bytes())
        self._delay_s = min(2 * self._delay_s + 1.0, _MAX_DELAY_S)
        self._next_s = self._now_s() + self._delay_s


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _find_malloc_trim() -> Callable[[], None]:
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None  # another C library
    return lambda: malloc_trim(0)
