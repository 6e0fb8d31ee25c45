"""What a process uses, from /proc: resident memory and CPU time."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME = 11
"""The position of `utime` in /proc/PID/stat behind the name of the program."""
_RSS = 21


class ProcessReading(msgspec.Struct, frozen=True):
    memory_bytes: int = 0
    cpu_s: float = 0.0
    """CPU time since the process started."""


def read_process(pid: int, proc: Path = Path("/proc")) -> ProcessReading:
    """Returns zeros for a process that has ended or that may not be read."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return ProcessReading()
    # The name of the program may contain spaces and parentheses.
    fields = text.rpartition(b")")[2].split()
    try:
        ticks = int(fields[_UTIME]) + int(fields[_UTIME + 1])
        return ProcessReading(int(fields[_RSS]) * _PAGE_BYTES, ticks / _TICKS_PER_S)
    except (IndexError, ValueError):
        return ProcessReading()
