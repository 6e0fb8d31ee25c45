"""Counts failures that repeat, so that one which happens a thousand times per second does not fill
the log.

In:  the place and the message of each WARNING or ERROR. Out: whether to write it; later, how many
     were not written.
Rule: within a window of time a message is written MAX_SAME times, and a place in the code writes
      MAX_PER_PLACE lines. The rest is counted, and the count is reported when the window ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

WINDOW_S = 10.0
MAX_SAME = 3
MAX_PER_PLACE = 100
MAX_MESSAGES = 1024
"""Messages that are told apart in one window; later ones are only counted by place."""

Place = tuple[str, str, int]
"""Severity, file and line."""


class Repeats:
    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._end_s = 0.0
        self._places: dict[Place, int] = {}
        """Lines that each place has written in this window."""
        self._messages: dict[tuple[Place, str], int] = {}
        self._unwritten: dict[tuple[Place, str], int] = {}

    def admit(self, place: Place, message: str) -> bool:
        """Returns False for a message that is only counted. Call `pop_due` first."""
        with self._lock:
            if not self._places:
                self._end_s = self._clock_s() + WINDOW_S
            key = (place, message)
            count = self._messages.get(key, 0) + 1
            if count > 1 or len(self._messages) < MAX_MESSAGES:
                self._messages[key] = count
            if count <= MAX_SAME:
                num_lines = self._places.get(place, 0) + 1
                if num_lines <= MAX_PER_PLACE:
                    self._places[place] = num_lines
                    return True
                key = (place, "")
            self._unwritten[key] = self._unwritten.get(key, 0) + 1
            return False

    def pop_due(self, *, is_final: bool = False) -> list[tuple[Place, str]]:
        """Returns a place and a message for everything that was only counted, when the window has
        ended or `is_final`."""
        if not self._places or not (is_final or self._clock_s() >= self._end_s):
            return []
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
            self._places, self._messages = {}, {}
        return [(place, _summary(message, count)) for (place, message), count in unwritten.items()]


def _summary(message: str, count: int) -> str:
    times = f"{count} more time{'s' if count > 1 else ''} within {WINDOW_S:g} s"
    if not message:
        return f"{count} more messages like the ones above within {WINDOW_S:g} s"
    return f"{times}: {message}"
