"""Keeps the event loop running while requests come one at a time, instead of letting the process
sleep between them.

Waking a sleeping process costs tens of microseconds (more on a virtual machine) and finds cold
caches. A client that waits for each response before it sends the next request pays that twice per
request.
In:  when batches are sent to workers and when they are done. Out: iterations of the loop, for at
     most the window after the last event.
Rule: never under load (the process is awake anyway), never when the last wait was longer than the
      window, never without a CPU to spare.
"""

from __future__ import annotations

import os

from naiad.core.clock import Clock
from naiad.machine.cpus import quota_cpus

MIN_LONE_REQUESTS = 4
"""How many requests in a row must have been alone in the server."""
MIN_CPUS = 2
MIN_QUOTA_CPUS = 4
"""Busy waiting uses up a container's quota as well."""


class BusyPoll:
    __slots__ = (
        "_clock",
        "_idle_since_ns",
        "_is_client_quick",
        "_is_model_quick",
        "_is_polling",
        "_num_lone",
        "_sent_ns",
        "_until_ns",
        "_window_ns",
        "num_batches",
    )

    def __init__(self, clock: Clock, window_ns: int) -> None:
        self._clock = clock
        self._window_ns = window_ns
        self.num_batches = 0
        """Batches that workers execute."""
        self._num_lone = 0
        self._sent_ns = 0
        self._idle_since_ns = 0
        self._is_client_quick = False
        self._is_model_quick = False
        self._until_ns = 0
        self._is_polling = False

    def on_batch_sent(self, num_requests: int, now_ns: int) -> None:
        self.num_batches += 1
        if self.num_batches > 1 or num_requests > 1:
            self._num_lone = 0
            self._until_ns = 0
            return
        self._num_lone += 1
        self._sent_ns = now_ns
        self._is_client_quick = now_ns - self._idle_since_ns <= self._window_ns
        if self._is_model_quick and self._num_lone > MIN_LONE_REQUESTS:
            self._stay_awake(now_ns)

    def on_batch_done(self) -> None:
        """The responses of a batch have come, or its worker is gone."""
        self.num_batches -= 1
        if self.num_batches:
            return
        now_ns = self._idle_since_ns = self._clock.now_ns()
        self._is_model_quick = now_ns - self._sent_ns <= self._window_ns
        if self._is_client_quick and self._num_lone > MIN_LONE_REQUESTS:
            self._stay_awake(now_ns)

    def _stay_awake(self, now_ns: int) -> None:
        self._until_ns = now_ns + self._window_ns
        if not self._is_polling:
            self._is_polling = True
            self._clock.call_soon(self._poll)

    def _poll(self) -> None:
        if self._clock.now_ns() < self._until_ns:
            self._clock.call_soon(self._poll)
        else:
            self._is_polling = False


def has_spare_cpu() -> bool:
    quota = quota_cpus()
    return len(os.sched_getaffinity(0)) >= MIN_CPUS and (quota is None or quota >= MIN_QUOTA_CPUS)
