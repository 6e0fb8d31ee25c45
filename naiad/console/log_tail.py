"""The last lines of the log, in memory.

In:  lines from naiad.log, from any thread. Out: lines after a number, so that a page asks only for
     what it does not have yet.
"""

from __future__ import annotations

from collections import deque
from itertools import count

import msgspec

from naiad.log import Line

MAX_LINES = 1000
MAX_CHARS = 2000
"""A longer message is cut."""


class TailLine(msgspec.Struct, frozen=True):
    number: int
    time_s: float
    severity: str
    origin: str
    message: str


class LogTail:
    def __init__(self) -> None:
        self._lines: deque[TailLine] = deque(maxlen=MAX_LINES)
        self._numbers = count(1)

    @property
    def last_number(self) -> int:
        """0 before the first line."""
        return self._lines[-1].number if self._lines else 0

    def add(self, line: Line) -> None:
        message = line.message
        if len(message) > MAX_CHARS:
            message = f"{message[:MAX_CHARS]}... ({len(message) - MAX_CHARS} more characters)"
        self._lines.append(
            TailLine(next(self._numbers), line.time_ns / 1e9, line.severity, line.origin, message)
        )

    def after(self, number: int) -> list[TailLine]:
        return [line for line in list(self._lines) if line.number > number]
