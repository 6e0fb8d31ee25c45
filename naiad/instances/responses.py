"""The way back: the responses of one worker -> the streams of jobs, and the model's statistics.

In:  `Executed`, with the responses of a batch, and `Response`, from a response sender. Out:
     ResponseStream.put.
Rule: the next batch is sent (`on_capacity`) before the responses of the last one are written.
"""

from __future__ import annotations

import time
from typing import Any, cast

import msgspec

from naiad.core.job import Job
from naiad.core.response import InferResponse
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import REFERENCE, Tensor
from naiad.errors import Code, NaiadError
from naiad.instances.channel import Channel
from naiad.instances.in_flight import Batch, InFlight, OnExecuted, OpenJob
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.observers import Observers
from naiad.ipc.framing import NOT_DECODED, BrokenLinkError
from naiad.ipc.messages import (
    EncodedExecuted,
    EncodedGroup,
    Executed,
    Response,
    ToServer,
)
from naiad.ipc.work import WorkError, WorkResponse

decode_tensors = msgspec.msgpack.Decoder(list[Tensor]).decode
"""Decodes tensors as they travel in messages."""


class Responses:
    """There is one per life of a worker process."""

    def __init__(
        self,
        channel: Channel[ToServer],
        plan: InstancePlan,
        in_flight: InFlight,
        observers: Observers,
        statistics: ModelStatistics,
    ) -> None:
        self._channel = channel
        self._plan = plan
        self._in_flight = in_flight
        self._observers = observers
        self._statistics = statistics

    # The responses of a batch.

    def on_encoded(self, message: EncodedExecuted) -> None:
        """Decodes the outputs, except those of requests that came encoded from a frontend process.
        Raises BrokenLinkError."""
        batch = self._in_flight.batches.get(message.batch)
        jobs = [] if batch is None else batch.jobs
        is_inline = message.is_inline
        try:
            for index, response in enumerate(
                message.responses[: len(jobs)] if is_inline else message.responses
            ):
                if response is not None and (
                    not is_inline or jobs[index].request.encoded_inputs is None
                ):
                    outputs: Any = decode_tensors(response.outputs)
                    response.outputs = outputs
        except NOT_DECODED as error:
            raise BrokenLinkError(str(error)) from error
        self.on_executed(cast(Executed, message))

    def on_executed(self, message: Executed) -> None:
        """Raises BrokenLinkError."""
        in_flight = self._in_flight
        batch = in_flight.end_batch(message.batch)
        if batch is None:
            raise BrokenLinkError(
                f"response to batch {message.batch}, which the worker does not have"
            )
        if len(message.responses) != len(batch.handles):
            for _, bundle in batch.bundles:
                bundle.divide()
            raise BrokenLinkError(
                f"{len(message.responses)} responses to a batch of {len(batch.handles)} requests"
            )
        if batch.on_executed is not None:
            self._report_executed(batch, batch.on_executed, message)
        # The next batch is sent first: the worker executes it while the responses of this one are
        # written.
        self._observers.notify_capacity()
        times = BatchTimes(
            batch.compute_start_ns,
            message.compute_input_end_ns,
            message.compute_output_start_ns,
            time.monotonic_ns(),
        )
        batch.times = times
        self._statistics.record_execution(batch.batch_size, times)
        is_delivered = False
        if batch.bundles:
            is_delivered = self._deliver_bundles(batch, message.responses, times)
        succeeded: list[Job] = []
        responses: list[WorkResponse] = []
        if not is_delivered:
            # Now, while the jobs are still in flight: a reference that is wrong ends the worker,
            # which fails all that is in flight.
            for response in message.responses:
                if response is not None and response.outputs.__class__ is list:
                    for tensor in response.outputs:
                        if tensor.data.__class__ is REFERENCE:
                            self._channel.link.resolve(response.outputs)
                            break
            pop = in_flight.jobs.pop
            for handle, response in zip(batch.handles, message.responses, strict=True):
                if response is not None and (entry := pop(handle, None)) is not None:
                    if response.error is None:
                        succeeded.append(entry.job)
                        responses.append(response)
                    else:
                        self._deliver_error(entry.job, response, response.error, times)
        if in_flight.abandoned:
            in_flight.abandoned.intersection_update(in_flight.jobs)
        if succeeded:
            self._statistics.record_compute(len(succeeded), times)
            self._statistics.record_responses(
                succeeded, times.compute_start_ns, times.compute_end_ns
            )
            self._deliver(succeeded, responses, times)
        if not in_flight.num_awaited:
            self._observers.notify_idle()

    def _deliver_bundles(
        self, batch: Batch, responses: list[WorkResponse | None], times: BatchTimes
    ) -> bool:
        """Delivers the responses of bundles whose requests have all succeeded. Divides the others,
        so that each of their requests gets its own response. Returns True if these were all
        responses of the batch."""
        plan, statistics = self._plan, self._statistics
        are_all = not batch.jobs
        num_succeeded = 0
        for handle, bundle in batch.bundles:
            if bundle.jobs is not None:
                are_all = False
                continue
            count = len(bundle.handles)
            start = handle - batch.handles[0]
            outputs = _plain_outputs(responses[start : start + count])
            if outputs is None:
                bundle.divide()
                are_all = False
                continue
            bundle.on_divide = None
            self._in_flight.num_bundled -= count
            num_succeeded += count
            statistics.record_bundle(
                bundle.start_ns,
                bundle.batch_size,
                bundle.queue_start_ns,
                times.compute_start_ns,
                times.compute_end_ns,
            )
            bundle.source.on_responses(bundle, plan.model_name, plan.model_version, outputs)
        if num_succeeded:
            statistics.record_compute(num_succeeded, times)
        return are_all

    def _deliver(self, jobs: list[Job], responses: list[WorkResponse], times: BatchTimes) -> None:
        """Delivers the responses of jobs that have exactly one."""
        part = jobs[0].part
        if (
            part is not None
            and part.relay is not None
            and part.relay.forward(jobs, responses, times)
        ):
            return
        name, version = self._plan.model_name, self._plan.model_version
        for job, response in zip(jobs, responses, strict=True):
            request = job.request
            if request.trace is not None:
                request.trace.computed(times)
            job.stream.put(
                InferResponse(
                    name, version, request.id, response.outputs, response.parameters, None, times
                ),
                True,
            )

    def _report_executed(self, batch: Batch, on_executed: OnExecuted, message: Executed) -> None:
        """A job that the model wants to see again counts as executed each time, as under
        Triton. A null job always ends here."""
        rescheduled: list[Job] = []
        now_ns = time.monotonic_ns()
        for handle, job, response in zip(batch.handles, batch.jobs, message.responses, strict=True):
            if job.is_null:
                self._in_flight.end_job(handle)
            elif (
                response is not None
                and response.is_rescheduled
                and self._in_flight.end_job(handle) is not None
            ):
                rescheduled.append(job)
                self._statistics.record_success(
                    job.batch_size,
                    job.start_ns,
                    job.queue_start_ns,
                    batch.compute_start_ns,
                    now_ns,
                )
        if rescheduled:
            times = BatchTimes(
                batch.compute_start_ns,
                message.compute_input_end_ns,
                message.compute_output_start_ns,
                now_ns,
            )
            self._statistics.record_compute(len(rescheduled), times)
        on_executed(batch.jobs, rescheduled)

    def _deliver_error(
        self,
        job: Job,
        response: WorkResponse,
        work_error: WorkError,
        times: BatchTimes,
    ) -> None:
        error = NaiadError(Code[work_error.code], work_error.message, work_error.retry_after_s)
        end_ns = times.compute_end_ns
        if job.request.trace is not None:
            job.request.trace.computed(times)
        self._statistics.record_failure(
            job.start_ns, end_ns, failure_reason(error.code, is_from_backend=True)
        )
        self._statistics.record_first_response(job.start_ns, end_ns)
        failed = self._to_response(job, response, error)
        failed.times = times
        job.stream.put(failed, True)

    # The responses of a response sender.

    def on_encoded_group(self, message: EncodedGroup) -> None:
        """The responses of one step. Those of requests that a frontend process waits for are passed
        on without a look at their outputs. Raises BrokenLinkError."""
        jobs, now_ns = self._in_flight.jobs, time.monotonic_ns()
        name, version = self._plan.model_name, self._plan.model_version
        is_plain = message.is_inline and self._plan.is_decoupled
        for item in message.items:
            response = item.response
            entry = jobs.get(item.handle)
            if (
                is_plain
                and entry is not None
                and entry.num_responses
                and response is not None
                and response.error is None
                and not item.is_final
                and entry.job.request.accepts_encoded
            ):
                self._count_response(entry, cast(WorkResponse, response), now_ns)
                job = entry.job
                job.stream.put(
                    InferResponse(
                        name,
                        version,
                        job.request.id,
                        cast("list[Tensor]", response.outputs),
                        response.parameters,
                    ),
                    False,
                )
            else:
                if response is not None:
                    try:
                        outputs: Any = decode_tensors(response.outputs)
                    except NOT_DECODED as error:
                        raise BrokenLinkError(str(error)) from error
                    response.outputs = outputs
                self.on_response(cast(Response, item))

    def on_response(self, message: Response) -> None:
        response = message.response
        if response is not None:
            self._channel.link.resolve(response.outputs)
        handle, in_flight = message.handle, self._in_flight
        if in_flight.num_bundled:
            in_flight.divide(handle)
        entry = in_flight.end_job(handle) if message.is_final else in_flight.jobs.get(handle)
        if entry is None or entry.job.is_null:
            return
        job = entry.job
        now_ns = time.monotonic_ns()
        is_first = entry.num_responses == 0
        error = None
        if response is not None:
            if response.error is not None:
                error = NaiadError(
                    Code[response.error.code], response.error.message, response.error.retry_after_s
                )
            if is_first:
                self._statistics.record_first_response(job.start_ns, now_ns)
        if self._plan.is_decoupled:
            self._count_response(entry, response, now_ns)
        if message.is_final:
            self._count_job(entry, error, now_ns)
        delivered = None if response is None else self._to_response(job, response, error)
        if delivered is not None and is_first:
            start_ns = entry.batch.compute_start_ns
            delivered.times = BatchTimes(start_ns, start_ns, now_ns, now_ns)
        job.stream.put(delivered, message.is_final)
        if not in_flight.num_awaited:
            self._observers.notify_idle()

    def _count_response(self, entry: OpenJob, response: WorkResponse | None, now_ns: int) -> None:
        statistics = self._statistics.response(entry.num_responses)
        entry.num_responses += 1
        if statistics is None:
            return
        took_ns = now_ns - entry.batch.compute_start_ns
        if response is None:
            statistics.empty_response.add(took_ns)
        elif response.error is not None:
            statistics.fail.add(took_ns)
        else:
            statistics.success.add(took_ns)
            statistics.compute_infer.add(took_ns)
            statistics.compute_output.add(0)

    def _count_job(self, entry: OpenJob, error: NaiadError | None, now_ns: int) -> None:
        job, batch = entry.job, entry.batch
        if job.request.trace is not None:
            job.request.trace.computed(self._times_of(batch, now_ns))
        if error is not None:
            self._statistics.record_failure(
                job.start_ns, now_ns, failure_reason(error.code, is_from_backend=True)
            )
            return
        start_ns = batch.compute_start_ns
        self._statistics.record_compute(1, self._times_of(batch, now_ns))
        self._statistics.record_success(
            job.batch_size, job.start_ns, job.queue_start_ns, start_ns, now_ns
        )

    @staticmethod
    def _times_of(batch: Batch, now_ns: int) -> BatchTimes:
        """The times of a job to which a response sender sends its final response now."""
        start_ns = batch.compute_start_ns
        return BatchTimes(
            start_ns,
            batch.times.compute_input_end_ns if batch.times is not None else start_ns,
            now_ns,
            now_ns,
        )

    def _to_response(
        self, job: Job, response: WorkResponse, error: NaiadError | None
    ) -> InferResponse:
        return InferResponse(
            self._plan.model_name,
            self._plan.model_version,
            job.request.id,
            response.outputs,
            response.parameters,
            error,
        )


def _plain_outputs(responses: list[WorkResponse | None]) -> list[msgspec.Raw] | None:
    """The outputs of responses that consist of encoded outputs alone; None if one of them does
    not."""
    outputs: list[Any] = []
    for response in responses:
        if (
            response is None
            or response.error is not None
            or response.parameters
            or response.outputs.__class__ is list
        ):
            return None
        outputs.append(response.outputs)
    return outputs
