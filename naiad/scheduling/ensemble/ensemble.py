"""Ensembles: one request -> a data flow of requests to other models.

In:  InferRequest for the ensemble. Out: step requests through `infer` (passed in: the same door
     that clients use), and the answers. A request is a run (ensemble_run.py). Those whose steps
     were in one batch go on to the next step as one, where nothing speaks against it
     (ensemble_relay.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.core.clock import Clock
from naiad.core.request import InferRequest, Relay
from naiad.core.response import ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, unavailable
from naiad.scheduling.ensemble.plan import EnsemblePlan, Route, RouteStep
from naiad.scheduling.ensemble.relay import AnswerRelay, Find, StepRelay
from naiad.scheduling.ensemble.run import Run
from naiad.scheduling.queue import RETRY_AFTER_S

Infer = Callable[[InferRequest], ResponseStream]

DEFAULT_MAX_INFLIGHT = 64


class EnsembleScheduler:
    def __init__(
        self,
        plan: EnsemblePlan,
        infer: Infer,
        clock: Clock,
        statistics: ModelStatistics,
        find: Find | None = None,
    ) -> None:
        """`find`: what a step's model is, for batches that go on as one; None where `infer` does
        more than to look it up."""
        self.plan = plan
        self._find = find
        self.infer = infer
        self._clock = clock
        self._statistics = statistics
        self._runs: set[Run] = set()
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None

    def enqueue(self, request: InferRequest) -> ResponseStream:
        if self._is_stopping and not request.is_inner:
            raise unavailable(
                "Server is stopping, scheduler for model has stopped accepting new inference requests",
                RETRY_AFTER_S,
            )
        stream = request.stream = ResponseStream()
        request.queue_start_ns = self._clock.now_ns()
        run = Run(self, request, stream)
        self._runs.add(run)
        run.start()
        return stream

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
        """What takes batches of this step's answers on, where they may go on as one."""
        if entry.relay is None and self._find is not None:
            if entry.is_last:
                entry.relay = AnswerRelay(entry, self, route.outputs)
            elif entry.heir is not None:
                self.relay_of(entry.heir, route)
                entry.relay = StepRelay(entry, entry.heir, self._find)
        return entry.relay

    def on_end(self, run: Run, times: BatchTimes, error: NaiadError | None) -> None:
        now_ns, statistics, request = self._clock.now_ns(), self._statistics, run.request
        if error is not None:
            statistics.record_failure(
                request.start_ns, now_ns, failure_reason(error.code, is_from_backend=False)
            )
        else:
            statistics.record_execution(request.batch_size, times)
            statistics.record_compute(1, times)
            statistics.record_success(
                request.batch_size,
                request.start_ns,
                request.queue_start_ns,
                request.queue_start_ns,
                now_ns,
            )
        self._runs.discard(run)
        self._tell_if_stopped()

    def finish(self, runs: list[Run], outputs: list[list[Tensor]]) -> None:
        """Of runs whose last step was answered in one batch. Each counts as one execution, as if it
        had been answered by itself."""
        now_ns, statistics = self._clock.now_ns(), self._statistics
        totals: list[BatchTimes] = []
        alike, count = runs[0], 0
        for run in runs:
            if run.times != alike.times or run.request.batch_size != alike.request.batch_size:
                self._count(alike, count, totals)
                alike, count = run, 0
            count += 1
            run.end_answered()
        self._count(alike, count, totals)
        statistics.record_unqueued([run.request for run in runs], now_ns)
        self._runs.difference_update(runs)
        self._tell_if_stopped()
        for run, tensors, times in zip(runs, outputs, totals, strict=True):
            response = run.response(tensors)
            response.times = times
            run.stream.put(response, True)

    def _count(self, run: Run, count: int, totals: list[BatchTimes]) -> None:
        """So many runs whose steps took the same time."""
        times = run.total_times()
        totals += [times] * count
        self._statistics.record_execution(run.request.batch_size, times, count)
        self._statistics.record_compute(count, times)

    def _tell_if_stopped(self) -> None:
        if self._stopped is not None and not self._stopped.done() and not self._runs:
            self._stopped.set_result(None)
