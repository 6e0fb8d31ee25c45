"""Dynamic batching: requests for one model -> batches for its instances.

In:  jobs, from InferenceCore, on the event loop; bundles of requests, from frontend processes.
Out: lists of jobs and bundles for Instance.execute.
Rule: only batch_rule.py decides *when* a batch closes, only batch_growth.py whether it waits for
      requests that are about to arrive, only queue.py the *order*, only wait_limit.py how many
      may wait without a policy. This file carries it out. A model without a scheduler in its
      config gets the same scheduler with a rule that never merges requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from naiad.core.bundle import Bundle, Queued
from naiad.core.clock import Clock, Timer
from naiad.core.job import Job
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics, failure_reason
from naiad.errors import NaiadError
from naiad.instances.executor import Executor
from naiad.scheduling.batch_growth import BatchGrowth
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.ordering import Ordering
from naiad.scheduling.queue import JobQueue, QueuePolicy
from naiad.scheduling.scheduler import Resizable, outage_error, stopping_error
from naiad.scheduling.wait_limit import WaitLimit


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
        max_queue_size: int = 0,
        max_queue_wait_s: float = 0.0,
        preserve_ordering: bool = False,
        may_lend: bool = False,
        start_count: int = 0,
    ) -> None:
        """`max_queue_size` is the limit where no policy sets one; 0 means unlimited.
        `max_queue_wait_s` limits the queue by time (naiad.scheduling.wait_limit); 0 means
        unlimited. `may_lend`: calls of a model may bypass the scheduler and go to an instance
        that nobody else waits for. `start_count`: no batch is sent before this many requests wait
        (naiad.scheduling.start_delay)."""
        self._instances = list(instances)
        self._start_count = start_count
        self._may_lend = may_lend and not (
            preserve_ordering or rule.max_queue_delay_ns or start_count
        )
        policies = (default_policy, *(priority_queue_policy or {}).values())
        self.accepts_batches = not (
            preserve_ordering
            or start_count
            or rule.max_queue_delay_ns
            or rule.preferred_batch_sizes - {rule.max_batch_size}
            or any(policy.max_queue_size for policy in policies)
        )
        """Only the size of a batch matters, and none of its jobs is refused: `enqueue_batch` may be
        used."""
        self.reads_inputs = rule.is_checked
        """Batches are formed by the names and shapes of the jobs' inputs."""
        self.accepts_bundles = (
            rule.max_batch_size > 1 and not rule.is_checked and not preserve_ordering
        )
        """The requests of a bundle can be executed together, and respond in any order:
        `enqueue_bundle` may be used."""
        self._rule = rule
        self._is_by_size = rule.is_by_size
        self._clock = clock
        self.now_ns = clock.now_ns
        self._statistics = statistics
        self._queue = JobQueue(
            clock,
            self._refuse,
            default_policy,
            priority_levels,
            default_priority_level,
            priority_queue_policy,
            max_queue_size,
        )
        self._wait_limit = WaitLimit(max_queue_wait_s) if max_queue_wait_s else None
        self._busy_since_ns = 0
        """When the last batch left the queue and further jobs had to wait for a free instance; 0
        while none waits. Only set where there is a `_wait_limit`."""
        self._ordering = Ordering() if preserve_ordering else None
        self._is_dispatch_due = False
        self._growth = BatchGrowth(self._queue, clock, rule.max_batch_size)
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

    def enqueue(self, job: Job) -> ResponseStream:
        if self._is_stopping and not job.is_inner:
            raise stopping_error()
        stream = job.stream
        job.queue_start_ns = self._clock.now_ns()
        try:
            if self._busy_since_ns and job.caller is None and not job.is_admitted:
                self._check_wait(job)
            self._queue.push(job)
        except NaiadError as error:
            self._statistics.record_failure(job.start_ns, job.queue_start_ns, "REJECTED")
            raise error
        if self._ordering is not None:
            stream = self._ordering.add(stream)
        self._statistics.pending_request_count += 1
        job.is_batched = True
        self._dispatch_soon()
        if self._is_dispatch_due and len(self._queue) >= self._growth.enough and job.caller is None:
            self._dispatch_enough()
        return stream

    def enqueue_bundle(self, bundle: Bundle) -> bool:
        """Accepts all requests of a bundle (only where `accepts_bundles`). Returns False, and does
        nothing, if they must be enqueued one by one, because some may be refused."""
        if self._is_stopping or (self._busy_since_ns and not self._has_room(len(bundle.handles))):
            return False
        bundle.queue_start_ns = self._clock.now_ns()
        if not self._queue.push_bundle(bundle):
            return False
        self._statistics.pending_request_count += len(bundle.handles)
        self._dispatch_soon()
        if self._is_dispatch_due and len(self._queue) >= self._growth.enough:
            self._dispatch_enough()
        return True

    def enqueue_batch(self, jobs: list[Job], batch_size: int) -> None:
        """Accepts a batch that another model's scheduler has formed (only where `accepts_batches`).
        The batch is executed as a whole if an instance is free and nothing is queued; otherwise its
        jobs are queued one by one. The jobs keep their streams."""
        fits = len(jobs) == 1 or batch_size <= self._rule.max_batch_size
        instance = self._free_instance() if fits and not self._queue else None
        if instance is not None:
            self._growth.on_batch_sent(len(jobs))
            instance.execute(jobs)
            return
        for job in jobs:
            self._queue.push(job, is_admitted=True)
        self._statistics.pending_request_count += len(jobs)
        self._dispatch_soon()

    def _has_room(self, count: int) -> bool:
        """Whether `_check_wait` would accept this many requests, one after the other."""
        assert self._wait_limit is not None
        num_running = sum(instance.inflight for instance in self._instances)
        limit = self._wait_limit.max_waiting(num_running)
        return limit is None or len(self._queue) + count <= limit

    def _check_wait(self, job: Job) -> None:
        """Raises NaiadError when the job would wait too long. Calls of a model and later steps of
        an ensemble are not refused: the request that led to them has been admitted."""
        assert self._wait_limit is not None
        num_running = sum(instance.inflight for instance in self._instances)
        limit = self._wait_limit.max_waiting(num_running)
        if limit is None or len(self._queue) < limit or self._queue.has_room(job, limit):
            return
        if self._free_instance() is None:
            raise self._wait_limit.refuse(len(self._queue))

    def inflight(self) -> int:
        return len(self._queue) + sum(
            instance.inflight for instance in (*self._instances, *self._leaving)
        )

    async def stop(self) -> None:
        self._is_stopping = True
        self._fail_waiting_if_broken()
        if self._start_count or self._rule.max_queue_delay_ns:
            self._dispatch_soon()  # nothing comes that is worth waiting for
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

    def holds_sequences(self, instance: Executor) -> bool:
        return False

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
        """Where requests are merged, those that arrive in the same iteration of the loop, on other
        connections, join the batch."""
        if self._rule.max_batch_size <= 1:
            self._dispatch()
        elif not self._is_dispatch_due:
            self._is_dispatch_due = True
            self._clock.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatch_due = False
        if self._start_count and not self._starts_now():
            return
        if self._growth.should_wait():
            self._dispatch_soon()
            return
        while self._queue and (instance := self._free_instance()) is not None:
            count = len(self._queue)
            batch = self._next_batch()
            if not batch:
                self._busy_since_ns = 0
                return
            count -= len(self._queue)
            if self._busy_since_ns:
                self._measure(count)
            self._statistics.pending_request_count -= count
            self._growth.on_batch_sent(count)
            instance.execute(batch)
        if self._queue:
            if self._wait_limit is not None and not self._busy_since_ns:
                self._busy_since_ns = self._clock.now_ns()
            if self._may_lend:
                for instance in self._instances:
                    instance.loan.recall(is_wanted=True)

    def _measure(self, num_jobs: int) -> None:
        assert self._wait_limit is not None
        now_ns = self._clock.now_ns()
        self._wait_limit.on_batch(num_jobs, now_ns - self._busy_since_ns)
        self._busy_since_ns = now_ns
        if not self._queue:
            self._on_nothing_waits()

    def _on_nothing_waits(self) -> None:
        self._busy_since_ns = 0
        if self._wait_limit is not None:
            self._wait_limit.on_empty()

    def _starts_now(self) -> bool:
        """Ends the delay of the start when enough requests wait. A scheduler that stops executes
        what it has."""
        if len(self._queue) < self._start_count and not self._is_stopping:
            return False
        self._start_count = 0
        return True

    def _dispatch_enough(self) -> None:
        """Dispatches before the iteration of the loop ends. If the requests of all clients were
        one batch, server and worker would only wait for each other; this way each works on one
        half. (Calls of models come in bursts anyway, so they do not get here.)"""
        instance = self._free_instance()
        if instance is not None and instance.max_batches == 1 and not self._rule.max_queue_delay_ns:
            self._growth.stop_waiting()
            self._dispatch()

    def _free_instance(self) -> Executor | None:
        """The free instance with the fewest jobs in flight."""
        free: Executor | None = None
        for instance in self._instances:
            if instance.is_free and (free is None or instance.inflight < free.inflight):
                free = instance
        return free

    def _next_batch(self) -> list[Queued]:
        """Empty when the batch waits for more jobs; a timer is set then."""
        if self._rule.max_batch_size <= 1:
            return self._queue.pop(1)
        if self._is_by_size:
            return self._queue.pop_size(self._rule.max_batch_size)
        now_ns = self._clock.now_ns()
        first = self._queue.first()
        assert first is not None
        waited_ns = now_ns - first.queue_start_ns
        if self._is_stopping:
            waited_ns = self._rule.max_queue_delay_ns
        count, wait_ns = self._rule.choose(self._queue.in_order(), waited_ns)
        if count:
            return self._queue.pop(count)
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
        self._busy_since_ns = 0  # the time of a restart says nothing about the model
        self._fail_waiting_if_broken()
        self.on_idle(instance)

    def _fail_waiting_if_broken(self) -> None:
        """Jobs may wait while an instance restarts, but not for long, and not while all of them
        crash in a loop."""
        if self._instances and all(instance.outage for instance in self._instances):
            self._queue.remove_all(outage_error(self._instances[0].outage))

    def _refuse(self, job: Job, error: NaiadError) -> None:
        if not self._queue:
            self._on_nothing_waits()
        self._statistics.pending_request_count -= 1
        self._statistics.record_failure(
            job.start_ns, self._clock.now_ns(), failure_reason(error.code, is_from_backend=False)
        )
        request = job.request
        job.stream.fail(error, request.model_name, request.model_version, request.id)
        self.on_idle(self._instances[0])
