"""An instance's way back: what its worker answers -> the requests' streams, and the model's
statistics.

In:  `Executed`, with the answers of a batch, and `Response`, one of a response sender. Out:
     ResponseStream.put.
Rule: the next batch leaves (`on_free`) before the answers of the last one are written.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import REFERENCE
from naiad.core.work import WorkError, WorkResponse
from naiad.errors import Code, NaiadError
from naiad.instances.execution import Execution
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.open_work import Batch, OnExecuted, OpenRequest, OpenWork
from naiad.ipc.framing import BrokenLinkError
from naiad.ipc.messages import Executed, Response

if TYPE_CHECKING:
    from naiad.instances.instance import Instance


class Answers:
    def __init__(
        self,
        instance: Instance,
        plan: InstancePlan,
        work: OpenWork,
        execution: Execution,
        statistics: ModelStatistics,
    ) -> None:
        self._instance = instance
        self._plan = plan
        self._work = work
        self._open = work.requests
        self._keep_batches = execution.keep_batches
        self._statistics = statistics

    # Of a batch.

    def on_executed(self, message: Executed) -> None:
        """Raises BrokenLinkError."""
        instance = self._instance
        batch = self._work.batches.pop(message.batch, None)
        if batch is None:
            raise BrokenLinkError(
                f"response to batch {message.batch}, which the worker does not have"
            )
        if batch.deadline is not None:
            batch.deadline.cancel()
        self._keep_batches(instance.num_batches - 1)
        if batch.on_executed is not None:
            self._tell_executed(batch, batch.on_executed, message)
        # The next batch goes out first: the worker works on it while the answers of this one are
        # written.
        instance.on_free(instance)
        # While they are still open: a reference that is wrong ends the worker, and with it all that
        # is open is failed.
        for response in message.responses:
            if response is not None:
                for tensor in response.outputs:
                    if tensor.data.__class__ is REFERENCE:
                        self._resolve(response)
                        break
        times = BatchTimes(
            batch.compute_start_ns,
            message.compute_input_end_ns,
            message.compute_output_start_ns,
            time.monotonic_ns(),
        )
        batch.times = times
        self._statistics.record_execution(batch.batch_size, times)
        pop = self._open.pop
        answered: list[InferRequest] = []
        answers: list[WorkResponse] = []
        for handle, response in zip(batch.handles, message.responses, strict=True):
            if response is not None and (entry := pop(handle, None)) is not None:
                if response.error is None:
                    answered.append(entry.request)
                    answers.append(response)
                else:
                    self._answer_error(entry.request, response, response.error, times)
        if self._work.abandoned:
            self._work.abandoned.intersection_update(self._open)
        if answered:
            self._statistics.record_compute(len(answered), times)
            self._statistics.record_responses(
                answered, times.compute_start_ns, times.compute_end_ns
            )
            self._deliver(answered, answers, times)
        if not self._open or not self._work.inflight:
            instance.on_idle(instance)

    def _deliver(
        self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes
    ) -> None:
        """The only responses of plain requests."""
        part = requests[0].part
        if (
            part is not None
            and part.relay is not None
            and part.relay.take(requests, responses, times)
        ):
            return
        name, version = self._plan.model_name, self._plan.model_version
        for request, response in zip(requests, responses, strict=True):
            if request.trace is not None:
                request.trace.computed(times)
            assert request.stream is not None
            request.stream.put(
                InferResponse(
                    name, version, request.id, response.outputs, response.parameters, None, times
                ),
                True,
            )

    def _resolve(self, response: WorkResponse) -> None:
        """Raises BrokenLinkError."""
        if self._instance.process is not None:
            self._instance.process.channel.link.resolve(response.outputs)

    def _tell_executed(self, batch: Batch, on_executed: OnExecuted, message: Executed) -> None:
        """A request that is to be seen again counts as executed each time, as under Triton; a null
        request ends here, whatever comes."""
        rescheduled: list[InferRequest] = []
        now_ns = time.monotonic_ns()
        for at, (handle, request) in enumerate(zip(batch.handles, batch.requests, strict=True)):
            response = message.responses[at]
            if request.is_null:
                self._work.pop(handle)
            elif (
                response is not None
                and response.is_rescheduled
                and self._work.pop(handle) is not None
            ):
                rescheduled.append(request)
                self._statistics.record_success(
                    request.batch_size,
                    request.start_ns,
                    request.queue_start_ns,
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
        on_executed(batch.requests, rescheduled)

    def _answer_error(
        self,
        request: InferRequest,
        response: WorkResponse,
        work_error: WorkError,
        times: BatchTimes,
    ) -> None:
        error = NaiadError(Code[work_error.code], work_error.message, work_error.retry_after_s)
        end_ns = times.compute_end_ns
        if request.trace is not None:
            request.trace.computed(times)
        self._statistics.record_failure(
            request.start_ns, end_ns, failure_reason(error.code, is_from_backend=True)
        )
        self._statistics.record_first_response(request.start_ns, end_ns)
        answer = self._to_response(request, response, error)
        answer.times = times
        assert request.stream is not None
        request.stream.put(answer, True)

    # Of a response sender.

    def on_response(self, message: Response) -> None:
        response = message.response
        if response is not None:
            self._resolve(response)
        entry = (
            self._work.pop(message.handle) if message.is_final else self._open.get(message.handle)
        )
        if entry is None or entry.request.is_null:
            return
        request = entry.request
        now_ns = time.monotonic_ns()
        is_first = entry.num_responses == 0
        error = None
        if response is not None:
            if response.error is not None:
                error = NaiadError(
                    Code[response.error.code], response.error.message, response.error.retry_after_s
                )
            if is_first:
                self._statistics.record_first_response(request.start_ns, now_ns)
        if self._plan.is_decoupled:
            self._count_response(entry, response, now_ns)
        if message.is_final:
            self._count_request(entry, error, now_ns)
        answer = None if response is None else self._to_response(request, response, error)
        if answer is not None and is_first:
            start_ns = entry.batch.compute_start_ns
            answer.times = BatchTimes(start_ns, start_ns, now_ns, now_ns)
        assert request.stream is not None
        request.stream.put(answer, message.is_final)
        if not self._work.inflight:
            self._instance.on_idle(self._instance)

    def _count_response(
        self, entry: OpenRequest, response: WorkResponse | None, now_ns: int
    ) -> None:
        statistics = self._statistics.response(entry.num_responses)
        entry.num_responses += 1
        took_ns = now_ns - entry.batch.compute_start_ns
        if response is None:
            statistics.empty_response.add(took_ns)
        elif response.error is not None:
            statistics.fail.add(took_ns)
        else:
            statistics.success.add(took_ns)
            statistics.compute_infer.add(took_ns)
            statistics.compute_output.add(0)

    def _count_request(self, entry: OpenRequest, error: NaiadError | None, now_ns: int) -> None:
        request, batch = entry.request, entry.batch
        if request.trace is not None:
            request.trace.computed(self._times_of(batch, now_ns))
        if error is not None:
            self._statistics.record_failure(
                request.start_ns, now_ns, failure_reason(error.code, is_from_backend=True)
            )
            return
        start_ns = batch.compute_start_ns
        self._statistics.record_compute(1, self._times_of(batch, now_ns))
        self._statistics.record_success(
            request.batch_size, request.start_ns, request.queue_start_ns, start_ns, now_ns
        )

    @staticmethod
    def _times_of(batch: Batch, now_ns: int) -> BatchTimes:
        """As seen from a request that is answered by a sender, now."""
        start_ns = batch.compute_start_ns
        return BatchTimes(
            start_ns,
            batch.times.compute_input_end_ns if batch.times is not None else start_ns,
            now_ns,
            now_ns,
        )

    def _to_response(
        self, request: InferRequest, response: WorkResponse, error: NaiadError | None
    ) -> InferResponse:
        return InferResponse(
            self._plan.model_name,
            self._plan.model_version,
            request.id,
            response.outputs,
            response.parameters,
            error,
        )
