"""How long an idle engine waits for the requests that come together with the first one.

A step that begins with the first of several keeps the others waiting for its whole length, and
makes all end a step later.
Rule: a request that comes alone, after others that came alone, never waits; the others wait for a
      part of a step at most.
"""

from __future__ import annotations

PART_OF_STEP = 0.25
MAX_WAIT_S = 0.01


class ArrivalWindow:
    def __init__(self) -> None:
        self._step_s = 0.0
        self._num_together = 0
        self._most_together = 0
        """Of the busy period before this one."""

    def record_step(self, took_s: float, num_open: int) -> None:
        self._step_s = took_s
        self._num_together = max(self._num_together, num_open)

    def end_busy_period(self) -> None:
        if self._num_together:
            self._most_together, self._num_together = self._num_together, 0

    @property
    def num_expected(self) -> int:
        return self._most_together

    @property
    def wait_s(self) -> float:
        return min(MAX_WAIT_S, self._step_s * PART_OF_STEP) if self._most_together > 1 else 0.0
