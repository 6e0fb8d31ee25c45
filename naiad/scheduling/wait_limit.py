"""How many requests may wait for a model, by the time that they would wait.

In:  the batches that left the queue while requests were waiting and no instance was free.
Out: the number of requests that may wait, and the error of a request beyond it.
A model that is overloaded for long would make every request wait for a full queue. So there are two
limits. The high one lets bursts in, and clients that each wait for their own response. A request
beyond it shows an overload; then the low one applies until the queue has been empty, so that
requests which are admitted have nearly the latency of a model that is not overloaded.
Rule: nothing is refused before the rate has been measured, and nothing unless the operator asked
      for a limit.
"""

from __future__ import annotations

import math

from naiad.errors import NaiadError, unavailable

LOW_FRACTION = 20
"""In an overload, requests wait for at most this part of the maximum: 100 ms of 2 s. That is short,
and long enough to keep the instances busy through a pause of the event loop."""
MAX_EXECUTIONS = 32
LOW_EXECUTIONS = 2
"""The number of requests that may always wait for each one that is executed. A model whose
execution takes seconds would otherwise have no queue."""
MEASURED_NS = 100_000_000
"""The rate is known when it has been measured for this long."""
WINDOW_NS = 1_000_000_000
"""The weight of earlier measurements, as time."""
MAX_SLOWDOWN = 4
"""One interval counts as at most this many times the mean, so that a pause of the machine does not
look like a slow model."""


class WaitLimit:
    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_ns = max_wait_s * 1e9
        self._num_jobs = 0.0
        self._elapsed_ns = 0.0
        self._has_begun = False
        self._is_overloaded = False

    def on_batch(self, num_jobs: int, elapsed_ns: int) -> None:
        """A batch left the queue, `elapsed_ns` after the one before. Requests waited and no
        instance was free all that time."""
        if not self._has_begun:  # the first execution of a model is often slow
            self._has_begun = True
            return
        counted_ns: float = elapsed_ns
        if self._elapsed_ns >= MEASURED_NS:
            mean_ns = self._elapsed_ns / self._num_jobs
            counted_ns = min(counted_ns, MAX_SLOWDOWN * num_jobs * mean_ns)
        if self._elapsed_ns > WINDOW_NS:
            self._num_jobs *= WINDOW_NS / self._elapsed_ns
            self._elapsed_ns = WINDOW_NS
        self._num_jobs += num_jobs
        self._elapsed_ns += counted_ns

    def on_empty(self) -> None:
        """Nothing waits any more."""
        self._is_overloaded = False

    def max_waiting(self, num_running: int) -> int | None:
        """The number of requests that may wait while `num_running` are executed; None means any
        number."""
        if self._elapsed_ns < MEASURED_NS:
            return None
        in_time = self._max_wait_ns * self._num_jobs / self._elapsed_ns
        if self._is_overloaded:
            return max(int(in_time / LOW_FRACTION), LOW_EXECUTIONS * num_running, 1)
        return max(int(in_time), MAX_EXECUTIONS * num_running, 1)

    def refuse(self, num_waiting: int) -> NaiadError:
        """Returns the error of a request for which there is no place."""
        limit_s, limit = self._max_wait_ns / 1e9, "--max-queue-wait-secs"
        if self._is_overloaded:
            limit_s /= LOW_FRACTION
            limit += f" / {LOW_FRACTION} until nothing waits"
        self._is_overloaded = True
        wait_s = num_waiting * self._elapsed_ns / self._num_jobs / 1e9
        return unavailable(
            f"the model is overloaded: {num_waiting} requests wait, which takes about {wait_s:.2g} "
            f"s; the limit is {limit_s:.2g} s ({limit})",
            max(1, math.ceil(wait_s)),
        )
