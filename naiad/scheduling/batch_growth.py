"""Whether a batch that could be sent now should wait a moment, because more requests are likely to
arrive.

In:  the queue, once per iteration of the event loop. Out: send now, or look again in the next
     iteration.
A fuller batch shares its two wake-ups (of the worker and of the server) among more requests, and
costs them a few iterations of the loop, microseconds each. A request that comes alone is not held
up.
"""

from __future__ import annotations

from naiad.core.clock import Clock
from naiad.scheduling.queue import JobQueue

MAX_ITERATIONS = 8
"""Iterations of the event loop that a batch may keep growing before it is sent."""
MAX_IDLE_YIELDS = 2
"""How often in a row the CPU is yielded without a further request arriving."""
LARGE_ENSEMBLE_BATCH = 8
"""A batch of an ensemble's requests with this many is not held up by yielding the CPU."""
ENOUGH_REQUESTS = 32
"""This many requests share the cost of a batch so well that an idle worker need not wait for
more."""


class BatchGrowth:
    def __init__(self, queue: JobQueue, clock: Clock, max_batch_size: int) -> None:
        self._queue = queue
        self._clock = clock
        self._max_batch_size = max_batch_size
        self.enough = min(ENOUGH_REQUESTS, max_batch_size)
        self._last_count = 0
        """The size of the last batch that was sent."""
        self._seen_count = 0
        self._num_iterations = 0
        self._count_at_yield = 0
        self._num_yields = 0

    def should_wait(self) -> bool:
        count = len(self._queue)
        is_worthwhile = self._seen_count < count < self._max_batch_size and (
            count > 1 or self._last_count > 1
        )
        if is_worthwhile and self._num_iterations < MAX_ITERATIONS:
            self._seen_count = count
            self._num_iterations += 1
            return True
        if count > self._count_at_yield:
            self._num_yields = 0
        if (
            self._num_yields < MAX_IDLE_YIELDS
            and count < LARGE_ENSEMBLE_BATCH
            and self._last_count > 1
            and self._is_ensemble_batch()
        ):
            self._count_at_yield = count
            self._num_yields += 1
            self._clock.yield_cpu()
            return True
        self._seen_count = self._num_iterations = self._count_at_yield = 0
        return False

    def _is_ensemble_batch(self) -> bool:
        """The batch goes on through all steps of an ensemble, so its cost is paid at every step.
        Clients on this machine that wait for a CPU run first, as long as that brings requests."""
        first = self._queue.first()
        return first is not None and first.part is not None and first.part.relay is not None

    def stop_waiting(self) -> None:
        """The next batch is sent as it is."""
        self._num_iterations = MAX_ITERATIONS

    def on_batch_sent(self, count: int) -> None:
        self._last_count = count
