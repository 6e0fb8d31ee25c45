"""A copy of a model: executes batches in its worker process, hands the answers to the requests' streams, and comes back when it dies.

In:  batches from a scheduler. Out: responses, by message; `on_free` when it can take another batch.
Invariant: every request that was handed over gets exactly one final response, from the model or, when its process ends, from here.
"""

from __future__ import annotations

import asyncio
import enum
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from naiad import log
from naiad.core.clock import Clock, Timer
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import REFERENCE, Tensor
from naiad.core.trace import Trace
from naiad.core.work import SEQUENCE_END, SEQUENCE_START, LoadArguments, WorkError, WorkRequest, WorkResponse
from naiad.errors import Code, NaiadError, internal
from naiad.shm.arena import INLINE_MAX_BYTES, Arena
from naiad.workers.call_graph import OutgoingCall
from naiad.workers.calls import Calls, Services
from naiad.workers.lease import Lease
from naiad.workers.messages import (
    CallFlow,
    Cancel,
    CancelCall,
    Control,
    DirectCalls,
    Execute,
    Executed,
    Flow,
    Lend,
    LogLine,
    Metric,
    Ping,
    Pong,
    Response,
    Responses,
    Returned,
    StartCall,
    ToServer,
)
from naiad.workers.restart import RestartPolicy, Restarts
from naiad.workers.template_process import Templates
from naiad.workers.warmup import WarmupSample, run_sample
from naiad.workers.worker_process import WorkerProcess, describe_status

ASYNC_MAX_BATCHES = 64
"""How many batches an instance with a coroutine `execute` works on at once."""
HEARTBEAT_NS = 2_000_000_000
UNRESPONSIVE_NS = 10_000_000_000
READY_HOOK_NS = 6_000_000_000
"""A bit more than the 5 s that the worker gives the hook."""


class State(enum.Enum):
    NEW = "new"
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"
    """Died; a new process is on its way."""
    STOPPED = "stopped"


OnExecuted: TypeAlias = Callable[[list[InferRequest], list[InferRequest]], None]
"""Called with (requests, those of them that the model wants to see again) when `execute` has returned, before any answer of the batch
is delivered. Not called when the worker ended first: then `on_state` is."""


class Batch(msgspec.Struct, eq=False):
    requests: list[InferRequest]
    handles: list[int]
    batch_size: int
    compute_start_ns: int
    times: BatchTimes | None = None
    """Known when `execute` has returned."""
    deadline: Timer | None = None
    on_executed: OnExecuted | None = None


class OpenRequest(msgspec.Struct, eq=False):
    request: InferRequest
    batch: Batch
    num_responses: int = 0


class InstancePlan(msgspec.Struct, frozen=True):
    """What every instance of a model version has in common."""

    backend: str
    model_name: str
    model_version: str
    is_decoupled: bool
    execution_timeout_ns: int
    """0 means none: a long `execute` is busy, not dead."""
    restarts: RestartPolicy
    warmup: list[WarmupSample] = []


class Permit(Protocol):
    """What an instance needs of the rate limiter (naiad.scheduling.rate_limiter.Permit)."""

    offer: Callable[[], None]

    def may_run(self) -> bool: ...

    def take(self) -> None: ...

    def give_back(self, num_running: int) -> None: ...

    def close(self) -> None: ...


class Instance:
    def __init__(
        self,
        clock: Clock,
        templates: Templates,
        plan: InstancePlan,
        arguments: LoadArguments,
        arena: Arena,
        statistics: ModelStatistics,
        services: Services,
        permit: Permit | None = None,
    ) -> None:
        self._clock = clock
        self._permit = permit
        if permit is not None:
            permit.offer = self._on_offer
        self._templates = templates
        self._plan = plan
        self._arguments = arguments
        self._arena = arena
        self._statistics = statistics
        self._services = services
        self.name = arguments.instance_name
        self.state = State.NEW
        self.on_free: Callable[[Instance], None] = lambda instance: None
        self.on_state: Callable[[Instance], None] = lambda instance: None
        self.observers: list[Callable[[], None]] = []
        """Called before `on_state`."""
        self.on_idle: Callable[[Instance], None] = lambda instance: None
        self.max_batches = 1
        self.num_batches = 0
        self.is_lendable = False
        """Its scheduler asks no more than that it is free."""
        self.is_latest = True
        """No later version of the model serves."""
        self._lease: Lease | None = None
        self._process: WorkerProcess | None = None
        self._calls: Calls | None = None
        self._open: dict[int, OpenRequest] = {}
        self._abandoned: set[int] = set()
        """Handles of open requests whose caller is gone: they end when the model ends them, and nothing waits for that."""
        self._batches: dict[int, Batch] = {}
        self._handle = 0
        self._restarts = Restarts(plan.restarts)
        self._restarting: asyncio.Task[None] | None = None
        self._ping_sent_ns = 0
        self._ping = 0
        self._is_responsive = True
        self._says_ready = True
        self._has_ready_hook = False
        self._ready_askers: list[Callable[[bool], None]] = []
        self.last_end = ""
        """How its process ended the last time, in words."""

    # Life.

    @property
    def is_free(self) -> bool:
        if self.state is not State.READY or self.num_batches >= self.max_batches or self._lease is not None:
            return False
        return self._permit is None or self._permit.may_run()

    def _on_offer(self) -> None:
        self.on_free(self)

    @property
    def is_serving(self) -> bool:
        return self.state is State.READY

    @property
    def is_healthy(self) -> bool:
        """Ready, answering, and by its own account fit to serve."""
        return self.state is State.READY and self._is_responsive and self._says_ready

    @property
    def is_broken(self) -> bool:
        """Died so often that it is only tried again now and then."""
        return self._restarts.is_broken

    @property
    def inflight(self) -> int:
        """Requests whose answer somebody still waits for."""
        return len(self._open) - len(self._abandoned)

    @property
    def has_ready_hook(self) -> bool:
        return self._has_ready_hook

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    # For the circles of calls (naiad.workers.call_graph).

    @property
    def model_name(self) -> str:
        return self._plan.model_name

    def executes(self, request: InferRequest) -> bool:
        if self._lease is not None and self._lease.request is request:
            return True
        return any(entry.request is request for entry in self._open.values())

    def waits(self) -> list[list[OutgoingCall]]:
        """A call from a thread of the model's own is taken to be what its only batch waits for, unless the model is decoupled."""
        calls = list(self._calls.waiting()) if self._calls is not None else []
        may_guess = len(self._batches) == 1 and not self._plan.is_decoupled
        waits = [
            [call for handles, call in calls if (not handles and may_guess) or not batch_handles.isdisjoint(handles)]
            for batch_handles in (frozenset(batch.handles) for batch in self._batches.values())
        ]
        if self._lease is not None:
            waits.append([call for handles, call in calls if self._lease.id in handles])
        return waits

    # Lending it to a model that calls it (naiad.workers.lease).

    @property
    def is_lent(self) -> bool:
        return self._lease is not None

    @property
    def may_borrow(self) -> bool:
        """What is lent itself does not borrow."""
        return self._lease is None and self.max_batches == 1 and not self._plan.is_decoupled and self.state is State.READY

    @property
    def _may_lend(self) -> bool:
        if not self.is_lendable or self._lease is not None or self.num_batches or self._open or self.state is not State.READY:
            return False
        if self.max_batches != 1 or self._permit is not None or self._plan.is_decoupled or self._plan.execution_timeout_ns:
            return False
        if self._has_ready_hook or not self.is_latest:
            return False  # the hook is asked whenever it is idle
        return self._calls is not None and not self._calls.has_borrowed

    def lend(self, batch_size: int, is_at_rest: Callable[[], bool], on_over: Callable[[Lease], None]) -> tuple[Lease, socket.socket] | None:
        if not self._may_lend or self._process is None:
            return None
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        self._lease = Lease(self, ours, self._statistics, batch_size, is_at_rest, on_over)
        self._process.channel.send(Lend(self._lease.id), [ours.fileno()])
        return self._lease, theirs

    def recall(self, *, is_wanted: bool = False) -> None:
        """From now on no call goes past the server. It is free again when its worker has said so."""
        if self._lease is not None:
            self._lease.recall(is_wanted=is_wanted)

    def _on_returned(self, message: Returned) -> None:
        if self._lease is not None and self._lease.id == message.lease:
            self._end_lease()
            self.on_free(self)
            self.on_idle(self)

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()

    async def load(self, process: WorkerProcess | None = None) -> None:
        """Raises when the model cannot be loaded; nothing is left behind then. `process` is one that has configured the model."""
        self.state = State.STARTING
        try:
            await self._start(process)
        except BaseException:
            self.state = State.STOPPED
            await self._discard_process()
            raise

    async def _start(self, process: WorkerProcess | None) -> None:
        if process is None:
            process = WorkerProcess(asyncio.get_running_loop(), self.name, self._arena)
            await process.start(self._templates.get(self._plan.backend))
        self._process = process
        # Before the load: a model may create metrics or call others from `initialize`.
        self._calls = Calls(process.channel, self._services, self.name, self._find_trace, self)
        process.on_message = self._take
        process.on_end = self._on_process_end
        loaded = await process.load(self._arguments)
        self.max_batches = ASYNC_MAX_BATCHES if loaded.is_async else 1
        self._has_ready_hook = loaded.has_ready_hook
        self._ping_sent_ns = 0
        self._is_responsive = self._says_ready = True
        for sample in self._plan.warmup:
            await run_sample(sample, self._plan.model_name, self._clock.now_ns(), self.execute)
        self.state = State.READY
        self._tell_state()
        self.on_free(self)

    async def stop(self, timeout_s: float) -> None:
        """The scheduler has drained it: finalize, then gone. Requests that are still open are failed."""
        self.state = State.STOPPED
        if self._permit is not None:
            self._permit.close()
        if self._restarting is not None:
            self._restarting.cancel()
        process = self._process
        if process is not None and not process.has_ended:
            await process.unload(timeout_s)
        await self._discard_process()

    async def _discard_process(self) -> None:
        if self._process is not None:
            await self._process.kill()
            self._process = None

    def _on_process_end(self) -> None:
        process, was_ready = self._process, self.state is State.READY
        if self._calls is not None:
            self._calls.close()
            self._calls = None
        if was_ready:
            self.state = State.DOWN
        self._end_lease()
        self._fail_open(internal(f"Failed to process the request(s) for model instance '{self.name}', message: its worker process ended"))
        if was_ready and process is not None:
            self._tell_state()
            self._restarting = asyncio.get_running_loop().create_task(self._restart(process))

    def _tell_state(self) -> None:
        for observer in self.observers:
            observer()
        self.on_state(self)

    def _fail_open(self, error: NaiadError) -> None:
        open_requests, self._open = self._open, {}
        self._abandoned.clear()
        self._settle_ready(False)
        for batch in self._batches.values():
            if batch.deadline is not None:
                batch.deadline.cancel()
        self._batches.clear()
        self._count_batches(0)
        now_ns = self._clock.now_ns()
        for entry in open_requests.values():
            if entry.request.is_null:
                continue
            self._statistics.record_failure(entry.request.start_ns, now_ns, "BACKEND")
            self._stream(entry.request).fail(error, self._plan.model_name, self._plan.model_version, entry.request.id)
        self.on_idle(self)

    async def _restart(self, ended: WorkerProcess) -> None:
        """Until it serves again. Each attempt waits longer; a crash loop is tried only now and then."""
        reason = describe_status(await ended.exited) if ended.pid else "ended"
        while self.state is State.DOWN:
            delay_s = self._restarts.next_delay_s(self._clock.now_ns())
            self.last_end = reason
            if self._restarts.is_broken:
                self._tell_state()
            log.error(f"worker of '{self.name}' {reason}; restarting in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            self._statistics.worker_restarts += 1
            try:
                await self._start(None)
                log.info(f"worker of '{self.name}' is back")
            except NaiadError as error:
                reason = f"failed to start: {error.message}"
                await self._discard_process()

    # Work.

    def execute(self, requests: list[InferRequest], on_executed: OnExecuted | None = None) -> None:
        """Only when `is_free`. The answers go to the requests' streams."""
        assert self._process is not None
        link = self._process.channel.link
        now_ns = time.monotonic_ns()
        handles: list[int] = []
        batch = Batch(requests, handles, 0, now_ns, on_executed=on_executed)
        work: list[WorkRequest] = []
        handle = number = self._handle + 1
        size = 0
        open_requests, cancel, is_decoupled = self._open, self._cancel, self._plan.is_decoupled
        for request in requests:
            inputs = request.inputs
            for tensor in inputs:
                if len(tensor.data) > INLINE_MAX_BYTES:
                    inputs = list(inputs)
                    link.place(inputs)
                    break
            flags = 0
            if request.sequence_start or request.sequence_end:
                flags = (SEQUENCE_START if request.sequence_start else 0) | (SEQUENCE_END if request.sequence_end else 0)
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
        self._handle = handle - 1
        self._batches[number] = batch
        self.num_batches += 1
        if self._services.busy_poll is not None:
            self._services.busy_poll.leave(len(requests), now_ns)
        if self._permit is not None:
            self._permit.take()
        if self._plan.execution_timeout_ns:
            batch.deadline = self._clock.call_at(now_ns + self._plan.execution_timeout_ns, self._on_execution_timeout)
        try:
            self._process.channel.send(Execute(number, work))
        except (TypeError, ValueError, OverflowError) as error:
            self._give_up(number, f"the batch could not be sent to its worker: {error}")

    def _give_up(self, number: int, reason: str) -> None:
        """A value that no message can carry: decoders refuse those, so this is a defect of theirs, and only these requests pay."""
        log.error(f"instance '{self.name}': {reason}")
        batch = self._batches.pop(number)
        self._count_batches(self.num_batches - 1)
        for handle in batch.handles:
            request = self._open.pop(handle).request
            self._abandoned.discard(handle)
            self._statistics.record_failure(request.start_ns, self._clock.now_ns(), "OTHER")
            self._stream(request).fail(internal(reason), self._plan.model_name, self._plan.model_version, request.id)
        if batch.on_executed is not None:
            batch.on_executed(batch.requests, [])
        self.on_idle(self)

    def _count_batches(self, count: int) -> None:
        if self._services.busy_poll is not None:
            for _ in range(self.num_batches - count):
                self._services.busy_poll.come_back()
        self.num_batches = count
        if self._permit is not None:
            self._permit.give_back(count)

    def _on_execution_timeout(self) -> None:
        log.error(f"instance '{self.name}' has executed for longer than its limit of {self._plan.execution_timeout_ns / 1e9:g} s: killed")
        if self._process is not None:
            self._process.kill_now()

    def _cancel(self, handle: int) -> None:
        if handle in self._open and self._process is not None:
            self._abandoned.add(handle)
            self._process.channel.send(Cancel([handle]))
            if not self.inflight:
                self.on_idle(self)

    def _pop_open(self, handle: int) -> OpenRequest | None:
        self._abandoned.discard(handle)
        return self._open.pop(handle, None)

    def _set_paused(self, handle: int, is_paused: bool) -> None:
        if self._process is not None:
            self._process.channel.send(Flow(handle, is_paused))

    def _take(self, message: ToServer) -> None:
        match message:
            case Executed():
                self._on_executed(message)
            case Response():
                self._on_response(message)
            case Responses():
                for item in message.items:
                    self._on_response(item)
            case Pong():
                self._on_pong(message)
            case LogLine():
                pid = self._process.pid if self._process is not None else 0
                log.emit(message.severity, message.message, message.file, message.line, pid)
            case Returned():
                self._on_returned(message)
            case StartCall() | CancelCall() | CallFlow() | Metric() | Control() | DirectCalls():
                if self._calls is not None:
                    self._calls.take(message)

    def _on_executed(self, message: Executed) -> None:
        batch = self._batches.pop(message.batch)
        if batch.deadline is not None:
            batch.deadline.cancel()
        self._count_batches(self.num_batches - 1)
        if batch.on_executed is not None:
            self._tell_executed(batch, batch.on_executed, message)
        # The next batch goes out first: the worker works on it while the answers of this one are written.
        self.on_free(self)
        times = BatchTimes(batch.compute_start_ns, message.compute_input_end_ns, message.compute_output_start_ns, time.monotonic_ns())
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
        if self._abandoned:
            self._abandoned.intersection_update(self._open)
        if answered:
            self._statistics.record_compute(len(answered), times)
            self._statistics.record_answers(answered, times.compute_start_ns, times.compute_end_ns)
            self._deliver(answered, answers, times)
        if not self._open or not self.inflight:
            self.on_idle(self)

    def _deliver(self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes) -> None:
        """The only responses of plain requests."""
        name, version = self._plan.model_name, self._plan.model_version
        for request, response in zip(requests, responses, strict=True):
            if request.trace is not None:
                request.trace.computed(times)
            outputs = response.outputs
            for tensor in outputs:
                if tensor.data.__class__ is REFERENCE:
                    self._resolve(outputs)
                    break
            assert request.stream is not None
            request.stream.put(InferResponse(name, version, request.id, outputs, response.parameters, None, times), True)

    def _resolve(self, outputs: list[Tensor]) -> None:
        if self._process is not None:
            self._process.channel.link.resolve(outputs)

    def _tell_executed(self, batch: Batch, on_executed: OnExecuted, message: Executed) -> None:
        """A request that is to be seen again counts as executed each time, as under Triton; a null request ends here, whatever comes."""
        rescheduled: list[InferRequest] = []
        now_ns = time.monotonic_ns()
        for at, (handle, request) in enumerate(zip(batch.handles, batch.requests, strict=True)):
            response = message.responses[at]
            if request.is_null:
                self._pop_open(handle)
            elif response is not None and response.is_rescheduled and self._pop_open(handle) is not None:
                rescheduled.append(request)
                self._statistics.record_success(
                    request.batch_size, request.start_ns, request.queue_start_ns, batch.compute_start_ns, now_ns
                )
        if rescheduled:
            times = BatchTimes(batch.compute_start_ns, message.compute_input_end_ns, message.compute_output_start_ns, now_ns)
            self._statistics.record_compute(len(rescheduled), times)
        on_executed(batch.requests, rescheduled)

    def _answer_error(self, request: InferRequest, response: WorkResponse, work_error: WorkError, times: BatchTimes) -> None:
        error = NaiadError(Code[work_error.code], work_error.message, work_error.retry_after_s)
        end_ns = times.compute_end_ns
        if request.trace is not None:
            request.trace.computed(times)
        self._statistics.record_failure(request.start_ns, end_ns, failure_reason(error.code, is_from_backend=True))
        self._statistics.record_first_response(request.start_ns, end_ns)
        answer = self._to_response(request, response, error)
        answer.times = times
        self._stream(request).put(answer, True)

    def _on_response(self, message: Response) -> None:
        """From a response sender."""
        entry = self._pop_open(message.handle) if message.is_final else self._open.get(message.handle)
        if entry is None or entry.request.is_null:
            return
        request, response = entry.request, message.response
        now_ns = time.monotonic_ns()
        is_first = entry.num_responses == 0
        error = None
        if response is not None:
            if response.error is not None:
                error = NaiadError(Code[response.error.code], response.error.message, response.error.retry_after_s)
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
        self._stream(request).put(answer, message.is_final)
        if not self.inflight:
            self.on_idle(self)

    def _count_response(self, entry: OpenRequest, response: WorkResponse | None, now_ns: int) -> None:
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
            self._statistics.record_failure(request.start_ns, now_ns, failure_reason(error.code, is_from_backend=True))
            return
        start_ns = batch.compute_start_ns
        self._statistics.record_compute(1, self._times_of(batch, now_ns))
        self._statistics.record_success(request.batch_size, request.start_ns, request.queue_start_ns, start_ns, now_ns)

    @staticmethod
    def _times_of(batch: Batch, now_ns: int) -> BatchTimes:
        """As seen from a request that is answered by a sender, now."""
        start_ns = batch.compute_start_ns
        return BatchTimes(start_ns, batch.times.compute_input_end_ns if batch.times is not None else start_ns, now_ns, now_ns)

    def _find_trace(self, id: int) -> Trace | None:
        """Of a request that this worker works on."""
        for entry in self._open.values():
            trace = entry.request.trace
            if trace is not None and trace.id == id:
                return trace
        return None

    def _to_response(self, request: InferRequest, response: WorkResponse, error: NaiadError | None) -> InferResponse:
        if self._process is not None and response.outputs:
            self._process.channel.link.resolve(response.outputs)
        return InferResponse(self._plan.model_name, self._plan.model_version, request.id, response.outputs, response.parameters, error)

    @staticmethod
    def _stream(request: InferRequest) -> ResponseStream:
        assert request.stream is not None
        return request.stream

    # Health.

    def heartbeat(self, now_ns: int) -> None:
        """Asks an idle work loop whether it still turns. A busy one is not asked: busy is not dead."""
        if self.state is not State.READY or self._process is None or self.num_batches:
            return
        if self._lease is not None:
            if self._lease.is_idle():
                self.recall()
            if not self._lease.is_recalled or not self._lease.is_at_rest():
                return
            # Nobody can be waiting for it, and still it has not come back: it may have stopped.
        if self._ping_sent_ns and now_ns - self._ping_sent_ns > UNRESPONSIVE_NS and self._is_responsive:
            log.error(f"worker of '{self.name}' does not answer: not ready until it does")
            self._is_responsive = False
            self._tell_state()
        if not self._ping_sent_ns:
            self._ping += 1
            self._ping_sent_ns = now_ns
            self._process.channel.send(Ping(self._ping))

    def _on_pong(self, message: Pong) -> None:
        if message.number != self._ping:
            return
        self._ping_sent_ns = 0
        was_healthy = self.is_healthy
        self._is_responsive = True
        self._says_ready = message.is_ready
        self._settle_ready(self.is_healthy)
        if self.is_healthy != was_healthy:
            self._tell_state()

    def ask_ready(self, answer: Callable[[bool], None]) -> None:
        """Asks the model's own `is_ready` now, unless it is busy: then what is known has to do."""
        if (
            not self._has_ready_hook
            or self.state is not State.READY
            or self.num_batches
            or self._lease is not None
            or self._process is None
        ):
            answer(self.is_healthy)
            return
        self._ready_askers.append(answer)
        self._clock.call_at(self._clock.now_ns() + READY_HOOK_NS, lambda: self._settle_ready(False))
        self._ping += 1
        self._ping_sent_ns = self._clock.now_ns()
        self._process.channel.send(Ping(self._ping))

    def _settle_ready(self, is_ready: bool) -> None:
        askers, self._ready_askers = self._ready_askers, []
        for answer in askers:
            answer(is_ready)

    def drop_slots(self, ids: list[int]) -> None:
        if self._process is not None and ids:
            self._process.channel.link.drop_slots(ids)
