"""Keeps the event loop turning while one request at a time comes and goes, instead of letting it
sleep between the two.

Waking a sleeping process costs tens of microseconds, on a virtual machine more, and what it wakes
with is a cold cache: a client that waits for each answer before it sends the next request pays that
twice per request. In:  when batches leave for workers and when they come back. Out: turns of the
loop, for at most the window after the last event.
Rule: never under load (what is awake anyway needs no help), never where the last wait was longer
      than the window, never without a CPU to spare.
"""

from __future__ import annotations

import os

from naiad.core.clock import Clock

MIN_LONE = 4
"""So many requests in a row that were alone in the server."""
MIN_CPUS = 2
MIN_QUOTA_CPUS = 4
"""A container's quota is used up by waiting as well."""


class BusyPoll:
    __slots__ = ("_clock", "_idle_since_ns", "_is_client_quick", "_is_model_quick", "_is_turning", "_left_ns", "_num_lone", "_until_ns",
                 "_window_ns", "num_flying")  # fmt: skip

    def __init__(self, clock: Clock, window_ns: int) -> None:
        self._clock = clock
        self._window_ns = window_ns
        self.num_flying = 0
        """Batches that workers have."""
        self._num_lone = 0
        self._left_ns = 0
        self._idle_since_ns = 0
        self._is_client_quick = False
        self._is_model_quick = False
        self._until_ns = 0
        self._is_turning = False

    def leave(self, num_requests: int, now_ns: int) -> None:
        """A batch goes to its worker."""
        self.num_flying += 1
        if self.num_flying > 1 or num_requests > 1:
            self._num_lone = 0
            self._until_ns = 0
            return
        self._num_lone += 1
        self._left_ns = now_ns
        self._is_client_quick = now_ns - self._idle_since_ns <= self._window_ns
        if self._is_model_quick and self._num_lone > MIN_LONE:
            self._stay_awake(now_ns)

    def come_back(self) -> None:
        """A batch is answered, or lost."""
        self.num_flying -= 1
        if self.num_flying:
            return
        now_ns = self._idle_since_ns = self._clock.now_ns()
        self._is_model_quick = now_ns - self._left_ns <= self._window_ns
        if self._is_client_quick and self._num_lone > MIN_LONE:
            self._stay_awake(now_ns)

    def _stay_awake(self, now_ns: int) -> None:
        self._until_ns = now_ns + self._window_ns
        if not self._is_turning:
            self._is_turning = True
            self._clock.call_soon(self._turn)

    def _turn(self) -> None:
        if self._clock.now_ns() < self._until_ns:
            self._clock.call_soon(self._turn)
        else:
            self._is_turning = False


def has_spare_cpu() -> bool:
    quota = _quota_cpus()
    return len(os.sched_getaffinity(0)) >= MIN_CPUS and (quota is None or quota >= MIN_QUOTA_CPUS)


def _quota_cpus() -> float | None:
    """Of the container, by cgroup v2 or v1; None without one."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            limit, period = file.read().split()
    except (OSError, ValueError):
        try:
            with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") as file:
                limit = file.read().strip()
            with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us") as file:
                period = file.read().strip()
        except OSError:
            return None
    try:
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
