"""Dynamic batching: requests for one model -> batches for its instances.

In:  InferRequest, from InferenceCore, on the event loop.
Out: lists of requests handed to Instance.execute.
Rule: only batch_rule.py decides *when* a batch closes; only queue.py decides *order*; this file
      carries it out. A model without a scheduler in its config gets the same with a rule that never
      merges requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from naiad.core.clock import Clock, Timer
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics, failure_reason
from naiad.errors import NaiadError, unavailable
from naiad.instances.executor import Executor
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.ordering import Ordering
from naiad.scheduling.queue import RETRY_AFTER_S, QueuePolicy, RequestQueue
from naiad.scheduling.scheduler import Resizable

MAX_TURNS = 8
"""Of the event loop, that a batch may grow before it leaves."""
FULL_CONVOY = 8
"""Requests of an ensemble that do not wait for more to go with them through all of its steps."""
MAX_YIELDS = 2
"""Of the CPU, that bring no further request."""
ENOUGH = 32
"""Requests that share the price of a batch so well that an idle worker need not wait for more."""


class DynamicScheduler:
    def __init__(
        self,
        instances: Sequence[Executor],
        rule: BatchRule,
        clock: Clock,
        statistics: ModelStatistics,
        *,
        default_policy: QueuePolicy = QueuePolicy(),  # noqa: B008 - frozen
        priority_levels: int = 0,
        default_priority_level: int = 0,
        priority_queue_policy: dict[int, QueuePolicy] | None = None,
        preserve_ordering: bool = False,
        may_lend: bool = False,
    ) -> None:
        """`may_lend`: a call by a model may go past here to an instance that nobody else waits
        for."""
        self._instances = list(instances)
        self._may_lend = may_lend and not preserve_ordering and not rule.max_queue_delay_ns
        policies = (default_policy, *(priority_queue_policy or {}).values())
        self.takes_batches = not (
            preserve_ordering
            or rule.max_queue_delay_ns
            or rule.preferred_batch_sizes - {rule.max_batch_size}
            or any(policy.max_queue_size for policy in policies)
        )
        """A batch is made by its size alone, and no request of it is refused."""
        self._rule = rule
        self._clock = clock
        self.now_ns = clock.now_ns
        self._statistics = statistics
        self._queue = RequestQueue(
            clock,
            self._refuse,
            default_policy,
            priority_levels,
            default_priority_level,
            priority_queue_policy,
        )
        self._ordering = Ordering() if preserve_ordering else None
        self._is_dispatch_due = False
        self._seen_size = 0
        self._num_turns = 0
        self._yielded_size = 0
        self._num_yields = 0
        self._last_count = 0
        self._enough = min(ENOUGH, rule.max_batch_size)
        self._delay_timer: Timer | None = None
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None
        self._leaving: dict[Executor, asyncio.Future[None]] = {}
        for instance in self._instances:
            self._adopt(instance)

    def _adopt(self, instance: Executor) -> None:
        instance.attach(self)
        instance.loan.is_allowed = self._may_lend and not self._is_stopping

    # Scheduler.

    def enqueue(self, request: InferRequest) -> ResponseStream:
        if self._is_stopping and not request.is_inner:
            raise unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
                RETRY_AFTER_S,
            )
        stream = outer = request.stream = ResponseStream()
        request.queue_start_ns = self._clock.now_ns()
        try:
            self._queue.push(request)
        except NaiadError as error:
            self._statistics.record_failure(request.start_ns, request.queue_start_ns, "REJECTED")
            raise error
        if self._ordering is not None:
            outer = self._ordering.add(stream)
        self._statistics.pending_request_count += 1
        request.is_batched = True
        self._dispatch_soon()
        if self._is_dispatch_due and len(self._queue) >= self._enough and request.caller is None:
            self._dispatch_enough()
        return outer

    def take_batch(self, requests: list[InferRequest], batch_size: int) -> None:
        """One that has come about elsewhere (only where `takes_batches`): as a whole, when it would
        leave like this if its requests came one by one; else through the queue. Their streams go
        on."""
        fits = len(requests) == 1 or batch_size <= self._rule.max_batch_size
        instance = self._free_instance() if fits and not self._queue else None
        if instance is not None:
            self._last_count = len(requests)
            instance.execute(requests)
            return
        for request in requests:
            self._queue.push(request)
        self._statistics.pending_request_count += len(requests)
        self._dispatch_soon()

    def inflight(self) -> int:
        return len(self._queue) + sum(
            instance.inflight for instance in (*self._instances, *self._leaving)
        )

    async def stop(self) -> None:
        self._is_stopping = True
        self._fail_waiting_if_broken()
        for instance in (*self._instances, *self._leaving):
            instance.loan.is_allowed = False
            instance.loan.recall()
        while not self._is_idle():
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped

    def _is_idle(self) -> bool:
        return not self.inflight() and not any(
            instance.loan.is_active for instance in (*self._instances, *self._leaving)
        )

    # Instances come and go.

    @property
    def resizable(self) -> Resizable:
        return self

    @property
    def sequences(self) -> None:
        return None

    def add_instance(self, instance: Executor) -> None:
        self._instances.append(instance)
        self._adopt(instance)
        if self._queue:
            self._dispatch()

    async def remove_instance(self, instance: Executor) -> None:
        self._instances.remove(instance)
        instance.loan.is_allowed = False
        instance.loan.recall()
        gone = self._leaving[instance] = asyncio.get_running_loop().create_future()
        self.on_idle(instance)
        try:
            await gone
        finally:
            del self._leaving[instance]

    # Dispatching.

    def _dispatch_soon(self) -> None:
        """Where requests are merged, those that arrived in the same turn of the loop, on other
        connections, join the batch."""
        if self._rule.max_batch_size <= 1:
            self._dispatch()
        elif not self._is_dispatch_due:
            self._is_dispatch_due = True
            self._clock.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        if self._is_growing():
            self._dispatch_soon()
            return
        while self._queue and (instance := self._free_instance()) is not None:
            batch = self._next_batch()
            if not batch:
                return
            self._statistics.pending_request_count -= len(batch)
            self._last_count = len(batch)
            instance.execute(batch)
        if self._may_lend and self._queue:
            for instance in self._instances:
                instance.loan.recall(is_wanted=True)

    def _dispatch_enough(self) -> None:
        """In the midst of a turn. If all clients' requests went as one batch, server and worker
        would only ever wait for each other: this way one works on the first half while the other
        works on the second. Calls of models come in bursts anyway."""
        instance = self._free_instance()
        if instance is not None and instance.max_batches == 1 and not self._rule.max_queue_delay_ns:
            self._num_turns = MAX_TURNS
            self._dispatch()

    def _is_growing(self) -> bool:
        """Requests came in during the last turn of the loop, so more are likely in the next: a
        fuller batch shares its two wake-ups among more requests, and costs them a few turns,
        microseconds each. A request that comes alone is not held up."""
        size = len(self._queue)
        is_worth_it = self._seen_size < size < self._rule.max_batch_size and (
            size > 1 or self._last_count > 1
        )
        if is_worth_it and self._num_turns < MAX_TURNS:
            self._seen_size = size
            self._num_turns += 1
            return True
        if size > self._yielded_size:
            self._num_yields = 0
        if (
            self._num_yields < MAX_YIELDS
            and size < FULL_CONVOY
            and self._last_count > 1
            and self._is_convoy()
        ):
            self._yielded_size = size
            self._num_yields += 1
            self._clock.yield_cpu()
            return True
        self._seen_size = self._num_turns = self._yielded_size = 0
        return False

    def _is_convoy(self) -> bool:
        """The price of this batch is paid at every step of an ensemble. So clients that wait for a
        CPU, on this machine, are let go first, as long as that brings requests."""
        first = self._queue.first()
        return first is not None and first.part is not None and first.part.relay is not None

    def _free_instance(self) -> Executor | None:
        """The one with the least to do; instances take turns only by that."""
        free: Executor | None = None
        for instance in self._instances:
            if instance.is_free and (free is None or instance.inflight < free.inflight):
                free = instance
        return free

    def _next_batch(self) -> list[InferRequest]:
        """Empty when it pays to wait; then a timer is set."""
        if self._rule.max_batch_size <= 1:
            return self._queue.take(1)
        now_ns = self._clock.now_ns()
        first = self._queue.first()
        assert first is not None
        count, wait_ns = self._rule.choose(self._queue.in_order(), now_ns - first.queue_start_ns)
        if count:
            return self._queue.take(count)
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        self._delay_timer = self._clock.call_at(now_ns + wait_ns, self._dispatch)
        return []

    # What the instances report (naiad.instances.executor.InstanceObserver).

    def on_capacity(self, instance: Executor) -> None:
        if self._queue:
            self._dispatch_soon()

    def on_idle(self, instance: Executor) -> None:
        leaving = self._leaving.get(instance)
        if (
            leaving is not None
            and not leaving.done()
            and not instance.inflight
            and not instance.loan.is_active
        ):
            leaving.set_result(None)
        if self._stopped is not None and not self._stopped.done() and self._is_idle():
            self._stopped.set_result(None)

    def on_state_change(self, instance: Executor) -> None:
        self._fail_waiting_if_broken()
        self.on_idle(instance)

    def _fail_waiting_if_broken(self) -> None:
        """Waiting is worth it while an instance is coming back soon, not while all of them crash in
        a loop."""
        if self._instances and all(instance.is_broken for instance in self._instances):
            self._queue.remove_all(
                unavailable("no instance of the model is able to serve", RETRY_AFTER_S)
            )

    def _refuse(self, request: InferRequest, error: NaiadError) -> None:
        self._statistics.pending_request_count -= 1
        self._statistics.record_failure(
            request.start_ns,
            self._clock.now_ns(),
            failure_reason(error.code, is_from_backend=False),
        )
        assert request.stream is not None
        request.stream.fail(error, request.model_name, request.model_version, request.id)
        self.on_idle(self._instances[0])
