"""Gives memory that glibc keeps after large requests back to the system.

In:  the peaks of what is held, which the memory budget knows, and a call every few seconds. Out:
     malloc_trim, in a thread.
Rule: steady traffic is never trimmed, because its memory would only be faulted in again. A trim is
      due when the peak of the last interval is far below an earlier one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

MIN_FREED_BYTES = 32 * 1024 * 1024
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
    def __init__(self, pop_peak: Callable[[], int], trim: Callable[[], None] | None = None) -> None:
        """`pop_peak` returns the most bytes that were held since its last call. `trim` stands in
        for malloc_trim."""
        self._pop_peak = pop_peak
        self._trim = trim or _find_malloc_trim()
        self._high_bytes = 0
        """The highest peak since the last trim."""

    def due(self) -> Callable[[], None] | None:
        """Called every few seconds. Returns what must be run in a thread, if anything."""
        peak_bytes = self._pop_peak()
        self._high_bytes = max(self._high_bytes, peak_bytes)
        if self._high_bytes - peak_bytes < MIN_FREED_BYTES or peak_bytes > self._high_bytes // 2:
            return None
        self._high_bytes = peak_bytes
        return self._trim


def _find_malloc_trim() -> Callable[[], None]:
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return lambda: None  # another C library
    return lambda: malloc_trim(0)
