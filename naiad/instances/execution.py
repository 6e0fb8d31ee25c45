"""The way out: batches of a scheduler -> messages to one worker; cancelling, flow control, the
limit on execution time.

In:  lists of jobs and bundles, from `Instance.execute`. Out: `Execute` messages. Each job stays in
     `InFlight` until its final response.
Hot: one pass over the jobs of a batch, with as few calls per job as possible. Nothing is done for
     each request of a bundle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from naiad import log
from naiad.core.bundle import Bundle, Queued
from naiad.core.clock import Clock
from naiad.core.job import Job
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, internal
from naiad.instances.in_flight import Batch, InFlight, OnExecuted, OpenBundle, OpenJob
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.instances.worker_process import WorkerProcess
from naiad.ipc.messages import Cancel, Execute, Flow
from naiad.ipc.work import SEQUENCE_END, SEQUENCE_START, WorkBundle, WorkRequest
from naiad.shm.arena import INLINE_MAX_BYTES


class Execution:
    """There is one per life of a worker process."""

    def __init__(
        self,
        process: WorkerProcess,
        plan: InstancePlan,
        in_flight: InFlight,
        observers: Observers,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        self._process = process
        self._channel = process.channel
        self._plan = plan
        self._in_flight = in_flight
        self._observers = observers
        self._statistics = statistics
        self._clock = clock

    def execute(self, entries: Sequence[Queued], on_executed: OnExecuted | None) -> None:
        channel, in_flight = self._channel, self._in_flight
        now_ns = time.monotonic_ns()
        handles: list[int] = []
        jobs: list[Job] = []
        bundles: list[Bundle] = []
        batch = Batch(jobs, handles, 0, now_ns, on_executed=on_executed)
        work: list[WorkRequest] = []
        handle = number = in_flight.next_handle
        size = 0
        no_memory: NaiadError | None = None
        open_jobs, cancel = in_flight.jobs, self._cancel
        is_decoupled = self._plan.is_decoupled
        for job in entries:
            if type(job) is Bundle:
                bundles.append(job)
                continue
            jobs.append(job)
            request, stream = job.request, job.stream
            inputs = request.inputs
            if request.encoded_inputs is not None:
                inputs = cast(Any, request.encoded_inputs)
                tensors: list[Tensor] = []
            else:
                tensors = inputs
            for tensor in tensors:
                if len(tensor.data) > INLINE_MAX_BYTES:
                    inputs = list(inputs)
                    try:
                        channel.link.place(inputs)
                    except NaiadError as error:
                        no_memory = error
                    break
            flags = 0
            if request.sequence_start or request.sequence_end:
                flags = (SEQUENCE_START if request.sequence_start else 0) | (
                    SEQUENCE_END if request.sequence_end else 0
                )
            item = WorkRequest(
                handle,
                request.id,
                inputs,
                request.requested_outputs,
                request.parameters,
                request.sequence_id,
                flags,
                request.timeout_us,
                request.priority,
                "",
                job.is_null,
            )
            if request.trace is not None:
                item.trace_context, item.trace_id = request.trace.context, request.trace.id
            if request.identity is not None:
                item.key_id, item.key_weight = request.identity.key_id, request.identity.weight
            work.append(item)
            open_jobs[handle] = OpenJob(job, batch)
            handles.append(handle)
            stream.on_cancel(cancel, handle)
            if is_decoupled:
                stream.on_flow(partial(self._set_paused, handle))
            size += job.batch_size
            handle += 1
        if bundles:
            size += self._open_bundles(batch, bundles, handle)
        batch.batch_size = size
        in_flight.add_batch(number, batch)
        if self._plan.execution_timeout_ns:
            batch.deadline = self._clock.call_at(
                now_ns + self._plan.execution_timeout_ns, self._on_execution_timeout
            )
        if no_memory is not None:
            self._fail_unsent(number, work, no_memory)
            return
        try:
            channel.send(Execute(number, work, [_to_work(*open) for open in batch.bundles]))
        except (TypeError, ValueError, OverflowError) as error:
            # A value that no message can carry. Decoders refuse those, so this is a defect of a
            # decoder, and only these requests fail.
            self._fail_unsent(
                number, work, internal(f"the batch could not be sent to its worker: {error}")
            )

    def _open_bundles(self, batch: Batch, bundles: list[Bundle], handle: int) -> int:
        """Returns the sum of the batch sizes. The requests get handles from `handle` on."""
        size = 0
        batch.bundles = []
        for bundle in bundles:
            count = len(bundle.handles)
            batch.bundles.append(OpenBundle(handle, bundle))
            batch.handles.extend(range(handle, handle + count))
            bundle.on_divide = partial(self._on_divided, batch, handle)
            self._in_flight.num_bundled += count
            size += count * bundle.batch_size
            handle += count
        return size

    def _on_divided(self, batch: Batch, handle: int, bundle: Bundle, jobs: list[Job]) -> None:
        in_flight = self._in_flight
        in_flight.num_bundled -= len(jobs)
        for offset, job in enumerate(jobs):
            in_flight.jobs[handle + offset] = OpenJob(job, batch)
            job.stream.on_cancel(self._cancel, handle + offset)

    def fail_all(self, error: NaiadError) -> None:
        """The worker is gone, and everything that it had is lost."""
        now_ns = self._clock.now_ns()
        for job in self._in_flight.clear():
            if not job.is_null:
                self._fail(job, error, "BACKEND", now_ns)
        self._observers.notify_idle()

    def _fail_unsent(self, number: int, work: list[WorkRequest], error: NaiadError) -> None:
        """Fails a batch that was not sent."""
        log.error(f"instance '{self._process.name}': {error.message}")
        for item in work:
            if isinstance(item.inputs, list):
                self._channel.link.unplace(item.inputs)
        batch = self._in_flight.end_batch(number)
        assert batch is not None
        for _, bundle in batch.bundles:
            bundle.divide()
        for handle in batch.handles:
            if (entry := self._in_flight.end_job(handle)) is not None:
                self._fail(entry.job, error, "OTHER", self._clock.now_ns())
        if batch.on_executed is not None:
            batch.on_executed(batch.jobs, [])
        self._observers.notify_idle()

    def _fail(self, job: Job, error: NaiadError, reason: str, now_ns: int) -> None:
        self._statistics.record_failure(job.start_ns, now_ns, reason)
        plan = self._plan
        job.stream.fail(error, plan.model_name, plan.model_version, job.request.id)

    def _on_execution_timeout(self) -> None:
        limit_s = self._plan.execution_timeout_ns / 1e9
        log.error(
            f"instance '{self._process.name}' has executed for longer than its limit of "
            f"{limit_s:g} s: killed"
        )
        self._process.kill_now()

    def _cancel(self, handle: int) -> None:
        in_flight = self._in_flight
        if handle in in_flight.jobs:
            in_flight.abandoned.add(handle)
            self._channel.send(Cancel([handle]))
            if not in_flight.num_awaited:
                self._observers.notify_idle()

    def _set_paused(self, handle: int, is_paused: bool) -> None:
        self._channel.send(Flow(handle, is_paused))


def _to_work(handle: int, bundle: Bundle) -> WorkBundle:
    outputs = bundle.request.requested_outputs
    return WorkBundle(handle, bundle.ids, cast(Any, bundle.inputs), outputs)
