"""Ensembles: one request -> a data flow of requests to other models.

In:  jobs for the ensemble. Out: jobs for the steps, through `infer` (passed in: every check that a
     client's request gets applies to them), and the responses.
Each request is a run (run.py). Requests whose steps were in one batch go on to the next step as one
batch, where that makes no difference to them (relay.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.core.clock import Clock
from naiad.core.job import Job, Relay
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError
from naiad.scheduling.ensemble.plan import EnsemblePlan, Route, RouteStep
from naiad.scheduling.ensemble.relay import FinalRelay, Find, StepRelay
from naiad.scheduling.ensemble.run import Run
from naiad.scheduling.scheduler import stopping_error

Infer = Callable[[Job], ResponseStream]

DEFAULT_MAX_INFLIGHT = 64


class EnsembleScheduler:
    def __init__(
        self,
        plan: EnsemblePlan,
        infer: Infer,
        clock: Clock,
        statistics: ModelStatistics,
        find: Find | None = None,
        on_lost: Callable[[InferRequest], None] = lambda request: None,
    ) -> None:
        """`find` finds the model of a step, so that batches can go on as one. It is None where they
        must not, and where `infer` does more than to look the model up. `on_lost` is called with a
        request of a sequence that some steps may never get."""
        self.plan = plan
        self._find = find
        self.infer = infer
        self._on_lost = on_lost
        self._clock = clock
        self._statistics = statistics
        self._runs: set[Run] = set()
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None

    def enqueue(self, job: Job) -> ResponseStream:
        if self._is_stopping and not job.is_inner:
            raise stopping_error()
        job.queue_start_ns = self._clock.now_ns()
        run = Run(self, job)
        self._runs.add(run)
        run.start()
        return job.stream

    def inflight(self) -> int:
        return len(self._runs)

    async def stop(self) -> None:
        self._is_stopping = True
        while self._runs:
            self._stopped = asyncio.get_running_loop().create_future()
            await self._stopped

    @property
    def resizable(self) -> None:
        return None

    @property
    def sequences(self) -> None:
        return None

    def relay_of(self, entry: RouteStep, route: Route) -> Relay | None:
        """What sends on whole batches of this step; None where they must not go on as one."""
        if entry.relay is None and self._find is not None:
            if entry.is_last:
                entry.relay = FinalRelay(entry, self, route.outputs)
            elif entry.sole_successor is not None:
                self.relay_of(entry.sole_successor, route)
                entry.relay = StepRelay(entry, entry.sole_successor, self._find)
        return entry.relay

    def on_end(self, run: Run, times: BatchTimes, error: NaiadError | None) -> None:
        now_ns, statistics, job = self._clock.now_ns(), self._statistics, run.job
        if error is not None:
            statistics.record_failure(
                job.start_ns, now_ns, failure_reason(error.code, is_from_backend=False)
            )
            # Like Triton, a sequence goes on after an execution that failed.
            if job.request.sequence_id and error.code in (Code.UNAVAILABLE, Code.CANCELLED):
                self._on_lost(job.request)
        else:
            statistics.record_execution(job.batch_size, times)
            statistics.record_compute(1, times)
            statistics.record_success(
                job.batch_size, job.start_ns, job.queue_start_ns, job.queue_start_ns, now_ns
            )
        self._runs.discard(run)
        self._check_stopped()

    def finish(self, runs: list[Run], outputs: list[list[Tensor]]) -> None:
        """Ends runs whose last step was executed in one batch. Each counts as one execution, as if
        it had been executed alone."""
        now_ns, statistics = self._clock.now_ns(), self._statistics
        totals: list[BatchTimes] = []
        alike, count = runs[0], 0
        for run in runs:
            if run.times != alike.times or run.job.batch_size != alike.job.batch_size:
                self._count_alike(alike, count, totals)
                alike, count = run, 0
            count += 1
            run.end_in_batch()
        self._count_alike(alike, count, totals)
        statistics.record_unqueued([run.job for run in runs], now_ns)
        self._runs.difference_update(runs)
        self._check_stopped()
        for run, tensors, times in zip(runs, outputs, totals, strict=True):
            response = run.response(tensors)
            response.times = times
            run.job.stream.put(response, True)

    def _count_alike(self, run: Run, count: int, totals: list[BatchTimes]) -> None:
        """Counts `count` runs whose steps took the same time as those of `run`."""
        times = run.total_times()
        totals += [times] * count
        self._statistics.record_execution(run.job.batch_size, times, count)
        self._statistics.record_compute(count, times)

    def _check_stopped(self) -> None:
        if self._stopped is not None and not self._stopped.done() and not self._runs:
            self._stopped.set_result(None)
