"""An instance's way out: batches of a scheduler -> messages to its worker; cancelling, flow
control, the limit on execution time.

In:  lists of requests, by `Instance.execute`. Out: `Execute`; each request is open
     (naiad.instances.open_work) until its final response.
Hot: one pass over the requests of a batch, no call per request but those that it needs.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from naiad import log
from naiad.core.clock import Clock
from naiad.core.request import InferRequest
from naiad.core.statistics import ModelStatistics
from naiad.core.work import SEQUENCE_END, SEQUENCE_START, WorkRequest
from naiad.errors import NaiadError, internal
from naiad.instances.busy_poll import BusyPoll
from naiad.instances.instance_plan import InstancePlan, Permit
from naiad.instances.open_work import Batch, OnExecuted, OpenRequest, OpenWork
from naiad.ipc.messages import Cancel, Execute, Flow
from naiad.shm.arena import INLINE_MAX_BYTES

if TYPE_CHECKING:
    from naiad.instances.instance import Instance


class Execution:
    def __init__(
        self,
        instance: Instance,
        plan: InstancePlan,
        work: OpenWork,
        clock: Clock,
        statistics: ModelStatistics,
        busy_poll: BusyPoll | None,
        permit: Permit | None,
    ) -> None:
        self._instance = instance
        self._plan = plan
        self._work = work
        self._open = work.requests
        self._clock = clock
        self._statistics = statistics
        self._busy_poll = busy_poll
        self._permit = permit
        self._last_handle = 0

    def execute(self, requests: list[InferRequest], on_executed: OnExecuted | None = None) -> None:
        """Only when `is_free`. The answers go to the requests' streams."""
        instance = self._instance
        assert instance.process is not None
        channel = instance.process.channel
        link = channel.link
        now_ns = time.monotonic_ns()
        handles: list[int] = []
        batch = Batch(requests, handles, 0, now_ns, on_executed=on_executed)
        work: list[WorkRequest] = []
        handle = number = self._last_handle + 1
        size = 0
        no_memory: NaiadError | None = None
        open_requests, cancel, is_decoupled = self._open, self._cancel, self._plan.is_decoupled
        for request in requests:
            inputs = request.inputs
            for tensor in inputs:
                if len(tensor.data) > INLINE_MAX_BYTES:
                    inputs = list(inputs)
                    try:
                        link.place(inputs)
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
                request.is_null,
            )
            if request.trace is not None:
                item.trace_context, item.trace_id = request.trace.context, request.trace.id
            work.append(item)
            open_requests[handle] = OpenRequest(request, batch)
            handles.append(handle)
            stream = request.stream
            assert stream is not None
            stream.on_cancel(cancel, handle)
            if is_decoupled:
                stream.on_flow(partial(self._set_paused, handle))
            size += request.batch_size
            handle += 1
        batch.batch_size = size
        self._last_handle = handle - 1
        self._work.batches[number] = batch
        instance.num_batches += 1
        if self._busy_poll is not None:
            self._busy_poll.leave(len(requests), now_ns)
        if self._permit is not None:
            self._permit.take()
        if self._plan.execution_timeout_ns:
            batch.deadline = self._clock.call_at(
                now_ns + self._plan.execution_timeout_ns, self._on_execution_timeout
            )
        if no_memory is not None:
            self._give_up(number, work, no_memory)
            return
        try:
            channel.send(Execute(number, work))
        except (TypeError, ValueError, OverflowError) as error:
            # A value that no message can carry: decoders refuse those, so this is a defect of
            # theirs, and only these requests pay.
            self._give_up(
                number, work, internal(f"the batch could not be sent to its worker: {error}")
            )

    def keep_batches(self, count: int) -> None:
        """The worker has no more than that now."""
        instance = self._instance
        if self._busy_poll is not None:
            for _ in range(instance.num_batches - count):
                self._busy_poll.come_back()
        instance.num_batches = count
        if self._permit is not None:
            self._permit.give_back(count)

    def fail_open(self, error: NaiadError) -> None:
        """The worker is gone, and all that it had with it."""
        requests = self._work.clear()
        self.keep_batches(0)
        now_ns = self._clock.now_ns()
        for request in requests:
            if not request.is_null:
                self._fail(request, error, "BACKEND", now_ns)
        self._instance.on_idle(self._instance)

    def _give_up(self, number: int, work: list[WorkRequest], error: NaiadError) -> None:
        """A batch that has not left."""
        log.error(f"instance '{self._instance.name}': {error.message}")
        assert self._instance.process is not None
        for item in work:
            self._instance.process.channel.link.unplace(item.inputs)
        batch = self._work.batches.pop(number)
        if batch.deadline is not None:
            batch.deadline.cancel()
        self.keep_batches(self._instance.num_batches - 1)
        for handle in batch.handles:
            if (entry := self._work.pop(handle)) is not None:
                self._fail(entry.request, error, "OTHER", self._clock.now_ns())
        if batch.on_executed is not None:
            batch.on_executed(batch.requests, [])
        self._instance.on_idle(self._instance)

    def _fail(self, request: InferRequest, error: NaiadError, reason: str, now_ns: int) -> None:
        self._statistics.record_failure(request.start_ns, now_ns, reason)
        assert request.stream is not None
        request.stream.fail(error, self._plan.model_name, self._plan.model_version, request.id)

    def _on_execution_timeout(self) -> None:
        instance, limit_s = self._instance, self._plan.execution_timeout_ns / 1e9
        log.error(
            f"instance '{instance.name}' has executed for longer than its limit of {limit_s:g} s: killed"
        )
        if instance.process is not None:
            instance.process.kill_now()

    def _cancel(self, handle: int) -> None:
        instance = self._instance
        if handle in self._open and instance.process is not None:
            self._work.abandoned.add(handle)
            instance.process.channel.send(Cancel([handle]))
            if not self._work.inflight:
                instance.on_idle(instance)

    def _set_paused(self, handle: int, is_paused: bool) -> None:
        if self._instance.process is not None:
            self._instance.process.channel.send(Flow(handle, is_paused))
