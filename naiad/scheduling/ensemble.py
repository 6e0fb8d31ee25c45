"""Ensembles: one request -> a data flow of requests to other models, each started the moment its inputs are there.

In:  InferRequest for the ensemble. Out: step requests through `infer` (passed in: the same door that clients use), and the answers.
A decoupled step answers many times: each answer opens a scope of its own, downstream steps run once per scope, and tensors of the
enclosing scopes are visible in it. An ensemble without decoupled steps has one scope and one answer.
Rule: the plan (who feeds whom) is worked out once per ensemble; a run only fills tensors in and counts what is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from naiad.core.clock import Clock
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics, failure_reason
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, invalid_arg, unavailable
from naiad.scheduling.queue import RETRY_AFTER_S

Infer = Callable[[InferRequest], ResponseStream]


class Step(msgspec.Struct, frozen=True):
    model_name: str
    model_version: str
    """Empty means the latest."""
    input_map: dict[str, str]
    """Input of the model -> tensor of the ensemble."""
    output_map: dict[str, str]
    """Output of the model -> tensor of the ensemble."""
    is_decoupled: bool = False


class EnsemblePlan(msgspec.Struct, frozen=True):
    name: str
    version: str
    steps: list[Step]
    outputs: list[str]
    is_decoupled: bool
    """Any of its steps is: it answers any number of times."""
    max_inflight_requests: int
    """Answers of one decoupled step that may be on their way downstream; then it is told to pause."""

    def needed_steps(self, outputs: list[str]) -> list[int]:
        """Steps that contribute to these outputs; the others need not run."""
        wanted = set(outputs)
        needed: set[int] = set()
        is_growing = True
        while is_growing:
            is_growing = False
            for number, step in enumerate(self.steps):
                if number not in needed and not wanted.isdisjoint(step.output_map.values()):
                    needed.add(number)
                    wanted.update(step.input_map.values())
                    is_growing = True
        return sorted(needed)


DEFAULT_MAX_INFLIGHT = 64


class _Producer:
    """A decoupled step that runs: how many of its answers are still on their way through the steps after it."""

    __slots__ = ("num_open", "stream")

    def __init__(self) -> None:
        self.stream: ResponseStream | None = None
        self.num_open = 0

    def add(self, change: int, limit: int) -> None:
        self.num_open += change
        if self.stream is not None:
            self.stream.pause(self.num_open >= limit)


class _Scope:
    """Tensors by name; those of the enclosing scopes are visible too. Open while a step runs in it or in one that it encloses."""

    __slots__ = ("has_responded", "parent", "pending", "producer", "started", "tensors")

    def __init__(self, parent: _Scope | None, producer: _Producer | None) -> None:
        self.parent = parent
        self.producer = producer
        self.pending = 0
        self.tensors: dict[str, Tensor] = {}
        self.started: set[int] = set()
        self.has_responded = False

    def find(self, name: str) -> Tensor | None:
        scope: _Scope | None = self
        while scope is not None:
            tensor = scope.tensors.get(name)
            if tensor is not None:
                return tensor
            scope = scope.parent
        return None


class _Run:
    """One request on its way through the steps."""

    def __init__(self, scheduler: EnsembleScheduler, request: InferRequest, stream: ResponseStream) -> None:
        self._scheduler = scheduler
        self._plan = scheduler.plan
        self._request = request
        self._stream = stream
        self._outputs = request.requested_outputs or self._plan.outputs
        self._steps = scheduler.steps_for(request.requested_outputs)
        self._inflight: dict[int, ResponseStream] = {}
        self._last_key = 0
        self._num_responses = 0
        self._is_over = False
        produced = {name for number in self._steps for name in self._plan.steps[number].output_map.values()}
        self._possible = produced.union(tensor.name for tensor in request.inputs)

    def start(self) -> None:
        root = _Scope(None, None)
        for tensor in self._request.inputs:
            root.tensors[tensor.name] = tensor
        self._stream.on_cancel(self._cancel)
        self._stream.on_flow(self._set_paused)
        self._advance(root)
        self._finish_if_done()

    def _advance(self, scope: _Scope) -> None:
        """Starts every step that has all its inputs in this scope now and did not before."""
        for number in self._steps:
            if self._is_over:
                return
            if number not in scope.started and self._is_due(self._plan.steps[number], scope):
                scope.started.add(number)
                self._start_step(self._plan.steps[number], scope)
        self._respond_if_complete(scope)

    def _is_due(self, step: Step, scope: _Scope) -> bool:
        """All tensors that can come have come, and one of them belongs to this very scope: else the outer scope has run the step."""
        is_local = scope.parent is None
        for name in step.input_map.values():
            if name not in self._possible:
                continue  # an optional input that the request does not have
            if name in scope.tensors:
                is_local = True
            elif scope.find(name) is None:
                return False
        return is_local

    def _start_step(self, step: Step, scope: _Scope) -> None:
        try:
            stream = self._scheduler.infer(self._step_request(step, scope))
        except NaiadError as error:
            self._fail(error)
            return
        self._last_key += 1
        self._inflight[self._last_key] = stream
        scope.pending += 1
        producer = None
        if step.is_decoupled:
            producer = _Producer()
            producer.stream = stream
        stream.deliver_to(partial(self._on_response, self._last_key, step, scope, producer))

    def _step_request(self, step: Step, scope: _Scope) -> InferRequest:
        inputs: list[Tensor] = []
        for name, source in step.input_map.items():
            tensor = scope.find(source)
            if tensor is not None:
                inputs.append(Tensor(name, tensor.datatype, tensor.shape, tensor.data))
        outer = self._request
        return InferRequest(
            step.model_name,
            inputs,
            step.model_version,
            outer.id,
            list(step.output_map),
            outer.parameters,
            outer.sequence_id,
            outer.sequence_start,
            outer.sequence_end,
            outer.priority,
            outer.timeout_us,
            outer.deadline_ns,
        )

    def _on_response(
        self, key: int, step: Step, scope: _Scope, producer: _Producer | None, response: InferResponse | None, is_final: bool
    ) -> None:
        if is_final:
            self._inflight.pop(key, None)
        if not self._is_over and response is not None:
            if response.error is not None:
                self._fail(response.error)
            else:
                self._take_outputs(step, scope, producer, response)
        if is_final:
            self._leave(scope)
            self._finish_if_done()

    def _take_outputs(self, step: Step, scope: _Scope, producer: _Producer | None, response: InferResponse) -> None:
        target = scope
        if producer is not None:
            target = _Scope(scope, producer)
            scope.pending += 1
            target.pending += 1
            producer.add(1, self._plan.max_inflight_requests)
        for tensor in response.outputs:
            name = step.output_map.get(tensor.name)
            if name is not None:
                target.tensors[name] = Tensor(name, tensor.datatype, tensor.shape, tensor.data)
        self._advance(target)
        if producer is not None:
            self._leave(target)

    def _leave(self, scope: _Scope) -> None:
        """One thing less is going on in this scope; when nothing is, it closes, and so on outwards."""
        inner: _Scope | None = scope
        while inner is not None:
            inner.pending -= 1
            if inner.pending:
                return
            if inner.producer is not None:
                inner.producer.add(-1, self._plan.max_inflight_requests)
            inner = inner.parent

    def _respond_if_complete(self, scope: _Scope) -> None:
        """Once per scope: when the last missing output has appeared in it."""
        if self._is_over or scope.has_responded:
            return
        outputs: list[Tensor] = []
        is_local = False
        for name in self._outputs:
            tensor = scope.find(name)
            if tensor is None:
                return
            is_local = is_local or name in scope.tensors
            outputs.append(tensor)
        if not is_local:
            return
        scope.has_responded = True
        self._num_responses += 1
        response = InferResponse(self._plan.name, self._plan.version, self._request.id, outputs)
        if self._plan.is_decoupled:
            self._stream.put(response, False)
        else:
            self._end(None)
            self._stream.put(response, True)

    def _finish_if_done(self) -> None:
        if self._is_over or self._inflight:
            return
        if self._plan.is_decoupled:
            self._end(None)
            self._stream.close()
            return
        message = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
        self._fail(invalid_arg(f"[request id: {self._request.id or '<id_unknown>'}] {message}"))

    def _fail(self, error: NaiadError) -> None:
        """The first failure ends the request; the steps that still run are cancelled."""
        if self._is_over:
            return
        failure = NaiadError(error.code, f"in ensemble '{self._plan.name}', {error.message}", error.retry_after_s)
        self._end(failure)
        for stream in list(self._inflight.values()):
            stream.cancel()
        self._stream.fail(failure, self._plan.name, self._plan.version, self._request.id)

    def _end(self, error: NaiadError | None) -> None:
        self._is_over = True
        self._scheduler.on_end(self, self._request, error)

    def _cancel(self) -> None:
        self._fail(NaiadError(Code.CANCELLED, "request was cancelled"))

    def _set_paused(self, is_paused: bool) -> None:
        for stream in list(self._inflight.values()):
            stream.pause(is_paused)


class EnsembleScheduler:
    def __init__(self, plan: EnsemblePlan, infer: Infer, clock: Clock, statistics: ModelStatistics) -> None:
        self.plan = plan
        self.infer = infer
        self._clock = clock
        self._statistics = statistics
        self._all_steps = plan.needed_steps(plan.outputs)
        self._runs: set[_Run] = set()
        self._is_stopping = False
        self._stopped: asyncio.Future[None] | None = None

    def enqueue(self, request: InferRequest) -> ResponseStream:
        if self._is_stopping:
            raise unavailable("Server is stopping, scheduler for model has stopped accepting new inference requests", RETRY_AFTER_S)
        stream = request.stream = ResponseStream()
        request.queue_start_ns = self._clock.now_ns()
        run = _Run(self, request, stream)
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

    def steps_for(self, outputs: list[str]) -> list[int]:
        return self.plan.needed_steps(outputs) if outputs else self._all_steps

    def on_end(self, run: _Run, request: InferRequest, error: NaiadError | None) -> None:
        now_ns = self._clock.now_ns()
        if error is not None:
            self._statistics.record_failure(request.start_ns, now_ns, failure_reason(error.code, is_from_backend=False))
        else:
            times = BatchTimes(request.queue_start_ns, request.queue_start_ns, now_ns, now_ns)
            self._statistics.record_execution(request.batch_size, times)
            self._statistics.record_compute(1, times)
            self._statistics.record_success(request.batch_size, request.start_ns, request.queue_start_ns, request.queue_start_ns, now_ns)
        self._runs.discard(run)
        if self._stopped is not None and not self._stopped.done() and not self._runs:
            self._stopped.set_result(None)
