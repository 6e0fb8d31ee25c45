"""What a worker asks of the server: BLS calls, custom metrics, model control. There is one `Calls`
per life of a worker process.

Invariant: when the worker ends, its calls are cancelled and its metrics dropped; nothing is sent to
           a closed channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from naiad.core.identity import Identity
from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.tensor import SlotRef, Tensor
from naiad.core.trace import Trace
from naiad.errors import Code, NaiadError, unsupported
from naiad.instances.call_graph import OutgoingCall, Target, Waiter
from naiad.instances.channel import Channel
from naiad.instances.lease import LEND_AFTER, MAX_LEND_AFTER, WORTHWHILE, Lease
from naiad.instances.services import Services
from naiad.ipc.messages import (
    Borrow,
    CallEvent,
    CallFlow,
    CancelCall,
    Control,
    DirectCalls,
    Metric,
    Reply,
    StartCall,
    ToServer,
)
from naiad.ipc.work import (
    SEQUENCE_END,
    SEQUENCE_START,
    CallRequest,
    WorkError,
    WorkResponse,
)

MAX_REMEMBERED_LEASES = 256
"""Leases that have ended are remembered, because the worker may report their last calls later."""


class Calls:
    def __init__(
        self,
        channel: Channel[ToServer],
        services: Services,
        owner: str,
        find_trace: Callable[[int], Trace | None] = lambda id: None,
        instance: Waiter | None = None,
        find_identity: Callable[[list[int]], Identity | None] = lambda handles: None,
    ) -> None:
        """`owner`: the name of the instance. `find_trace` finds the trace of a request that the
        worker executes by its number. `instance`: None while the worker only completes a config.
        `find_identity` finds the API key of the requests with these handles."""
        self._channel = channel
        self._instance = instance
        self._outgoing: dict[int, tuple[list[int], OutgoingCall]] = {}
        self._find_trace = find_trace
        self._find_identity = find_identity
        self._services = services
        self._owner = owner
        self._repeatable: set[int] = set()
        """Calls that could have gone directly to the other worker, and count towards a lease."""
        self._num_calls: dict[str, int] = {}
        """Calls since the last lease that could have gone directly, keyed by model."""
        self._lend_after: dict[str, int] = {}
        self._borrowed: dict[int, Lease] = {}
        self._leases: dict[int, Lease] = {}
        """Includes leases that have ended."""
        self._streams: dict[int, ResponseStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(
        self, message: StartCall | CancelCall | CallFlow | Metric | Control | DirectCalls
    ) -> None:
        match message:
            case StartCall():
                self._start(message.call)
            case CancelCall():
                stream = self._streams.get(message.call)
                if stream is not None:
                    stream.cancel()
            case CallFlow():
                stream = self._streams.get(message.call)
                if stream is not None:
                    stream.pause(message.is_paused)
            case DirectCalls():
                for call in message.calls:
                    lease = self._leases.get(call.lease)
                    if lease is not None:
                        lease.count(call)
            case Metric():
                self._metric(message)
            case Control():
                task = asyncio.get_running_loop().create_task(self._control(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def waiting(self) -> Iterable[tuple[list[int], OutgoingCall]]:
        """Calls without a final response, each with the handles of the requests that it is made for
        (none when that is not known)."""
        return self._outgoing.values()

    def close(self) -> None:
        self._outgoing.clear()
        for lease in list(self._borrowed.values()):
            lease.recall(is_wanted=False)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.cancel()
        self._services.drop_metrics(self._owner)

    def _start(self, call: CallRequest) -> None:
        work = call.request
        self._resolve(work.inputs)
        request = InferRequest(
            call.model_name,
            work.inputs,
            str(call.model_version) if call.model_version > 0 else "",
            work.id,
            work.requested_outputs,
            work.parameters,
            work.correlation_id,
            bool(work.flags & SEQUENCE_START),
            bool(work.flags & SEQUENCE_END),
            work.priority,
            work.timeout_us,
        )
        request.is_call = True
        request.identity = self._find_identity(call.callers)
        job = Job(request, ResponseStream())
        if self._instance is not None:
            job.caller = outgoing = OutgoingCall(self._instance)
            self._outgoing[work.handle] = (call.callers, outgoing)
            if call.is_repeatable:
                self._repeatable.add(work.handle)
        if work.trace_id:
            trace = self._find_trace(work.trace_id)
            request.trace = None if trace is None else trace.child()
        try:
            if not call.is_decoupled and self._services.is_decoupled(
                request.model_name, request.model_version
            ):
                raise unsupported(
                    f"Model {call.model_name} is using the decoupled. The current BLS request call "
                    "doesn't support models using the decoupled transaction policy. Please use "
                    "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                    "models.'"
                )
            stream = self._services.infer(job)
        except NaiadError as error:
            self._outgoing.pop(work.handle, None)
            self._repeatable.discard(work.handle)
            self._channel.send(CallEvent(work.handle, _refusal(call.model_name, error), True))
            return
        self._streams[work.handle] = stream
        stream.deliver_to(partial(self._deliver, work.handle))

    def _resolve(self, inputs: list[Tensor]) -> None:
        """The calling model may keep the memory of its own inputs and write to it, so the called
        model gets a copy of that."""
        refs: list[Any] = [tensor.data for tensor in inputs]
        self._channel.link.resolve(inputs)
        for tensor, ref in zip(inputs, refs, strict=True):
            if isinstance(ref, SlotRef) and ref.is_mine:
                tensor.data = memoryview(tensor.data).toreadonly()

    def _deliver(self, number: int, response: InferResponse | None, is_final: bool) -> None:
        outgoing = None
        if is_final:
            self._streams.pop(number, None)
            outgoing = self._outgoing.pop(number, None)
        if self._channel.is_closed:
            return
        result = None
        if response is not None and response.error is not None:
            result = WorkResponse(error=WorkError.of(response.error))
        elif response is not None:
            outputs = list(response.outputs)
            try:
                self._channel.link.place(outputs)
                result = WorkResponse(outputs, None, response.parameters)
            except NaiadError as error:
                result = WorkResponse(error=WorkError.of(error))
        if is_final and number in self._repeatable:
            self._repeatable.discard(number)
            if outgoing is not None and result is not None and result.error is None:
                # Before the response, so that the next call of the model finds the lease.
                self._borrow(number, outgoing[1].targets)
        self._channel.send(CallEvent(number, result, is_final))

    # Borrowing an instance (naiad.instances.lease.Borrower).

    @property
    def has_borrowed(self) -> bool:
        return bool(self._borrowed)

    @property
    def is_at_rest(self) -> bool:
        return self._instance is None or self._instance.is_free

    def _borrow(self, number: int, targets: list[Target]) -> None:
        """The next call like this one may go directly, when the model has made enough of them."""
        borrower = self._instance
        if len(targets) != 1 or borrower is None or not borrower.may_borrow:
            return
        (target,) = targets
        name = target.model_name
        count = self._num_calls[name] = self._num_calls.get(name, 0) + 1
        if count < self._lend_after.get(name, LEND_AFTER):
            return
        for instance in target.instances:
            loan = instance.loan.lend(target.job.batch_size, self)
            if loan is None:
                continue
            lease, sock = loan
            self._num_calls[name] = 0
            self._borrowed[lease.id] = self._leases[lease.id] = lease
            if len(self._leases) > MAX_REMEMBERED_LEASES:
                oldest = next(iter(self._leases))
                if oldest not in self._borrowed:
                    del self._leases[oldest]
            outgoing = OutgoingCall(borrower)
            outgoing.targets.append(Target(lease.job, name, [instance]))
            self._outgoing[-lease.id] = ([], outgoing)
            with sock:
                self._channel.send(Borrow(lease.id, number, instance.name), [sock.fileno()])
            return

    def on_lease_end(self, lease: Lease) -> None:
        self._borrowed.pop(lease.id, None)
        self._outgoing.pop(-lease.id, None)
        name = lease.model_name
        after = self._lend_after.get(name, LEND_AFTER)
        if lease.is_wanted:
            has_paid = lease.num_calls > WORTHWHILE * after
            self._lend_after[name] = LEND_AFTER if has_paid else min(2 * after, MAX_LEND_AFTER)

    # Metrics and model control.

    def _metric(self, message: Metric) -> None:
        value, error = 0.0, None
        try:
            value = self._services.apply_metric(self._owner, message.operation)
        except NaiadError as failure:
            error = WorkError.of(failure)
        if message.question:
            self._channel.send(Reply(message.question, value, error))

    async def _control(self, message: Control) -> None:
        value, error = False, None
        try:
            value = await self._services.control(self._owner, message.operation)
        except NaiadError as failure:
            error = WorkError.of(failure)
        except Exception as failure:
            error = WorkError(Code.INTERNAL.name, f"{type(failure).__name__}: {failure}")
        self._channel.send(Reply(message.question, float(value), error))


def _refusal(model_name: str, error: NaiadError) -> WorkResponse:
    """The response to a call that did not reach the model. Models match on Triton's text, and
    Triton turns every such error into INTERNAL."""
    message = error.message
    if message.startswith("Request for unknown model"):
        message = f"Failed for execute the inference request. Model '{model_name}' is not ready."
    return WorkResponse(
        error=WorkError(
            Code.INTERNAL.name, f"Model {model_name} - Error when running inference: {message}"
        )
    )
