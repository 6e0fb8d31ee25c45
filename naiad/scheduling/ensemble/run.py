"""One request on its way through the steps of an ensemble. Each step starts as soon as its inputs
are there.

In:  the job of the ensemble, and responses of its steps. Out: jobs for the steps, through `infer`,
     and the responses of the ensemble.
A decoupled step responds many times: each response opens a scope, and the later steps run once per
scope. Configs that would mix tensors of different scopes are refused at load. An output that a step
leaves out is absent: later steps run without it (it may be optional to them), and the response does
not have it either.
Rule: the plan (plan.py) knows which step feeds which; a run only stores tensors and counts what is
      missing and in flight.
"""

from __future__ import annotations

from typing import Protocol

from naiad import log
from naiad.core.job import Job, Relay
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse, ResponseStream
from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor
from naiad.errors import Code, NaiadError, invalid_arg
from naiad.scheduling.ensemble.plan import EnsemblePlan, Route, RouteStep
from naiad.scheduling.ensemble.sequence_mark import SequenceMark

EMPTY_BATCH = "inference request batch-size must be >= 1"
MAX_TIMES = 64
"""Times of executions that are kept apart, because a decoupled step may have any number of
responses. Beyond that they are added up."""


class RunOwner(Protocol):
    """The ensemble of a run (naiad.scheduling.ensemble.ensemble.EnsembleScheduler)."""

    plan: EnsemblePlan

    def infer(self, job: Job, /) -> ResponseStream: ...

    def relay_of(self, entry: RouteStep, route: Route) -> Relay | None: ...

    def on_end(self, run: Run, times: BatchTimes, error: NaiadError | None) -> None: ...


class Producer:
    """A decoupled step that runs, and how many of its responses are still on their way through the
    later steps."""

    __slots__ = ("num_open", "stream")

    def __init__(self, stream: ResponseStream) -> None:
        self.stream = stream
        self.num_open = 0

    def add(self, change: int, limit: int) -> None:
        self.num_open += change
        self.stream.pause(self.num_open >= limit)


class Scope:
    """The tensors of one pass through the steps. A scope is open while a step runs in it or in a
    scope inside it."""

    __slots__ = (
        "marks",
        "missing",
        "num_missing_outputs",
        "num_open",
        "parameters",
        "parent",
        "producer",
        "tensors",
    )

    def __init__(self, run: Run, parent: Scope | None, producer: Producer | None) -> None:
        self.parent = parent
        self.producer = producer
        self.num_open = 0
        route = run.route
        self.tensors: dict[str, Tensor] = {} if parent is None else parent.tensors.copy()
        """Keyed by the name in the ensemble. A tensor that a step has made still has the name of
        the model's output."""
        self.missing: list[int] = route.awaited.copy() if parent is None else parent.missing.copy()
        """Number of tensors that each step of the route still waits for."""
        self.num_missing_outputs: int = (
            route.num_made_outputs if parent is None else parent.num_missing_outputs
        )
        self.marks: dict[str, SequenceMark] | None = None
        """Tensors for which a step has said which sequence they belong to."""
        self.parameters: dict[str, ParameterValue] | None = None


class StepCall:
    """A step of a run, from its request to its final response. Where a batch goes on as one, the
    same call moves from step to step."""

    __slots__ = ("entry", "key", "producer", "relay", "run", "scope")

    def __init__(self, run: Run, key: int, entry: RouteStep, scope: Scope) -> None:
        self.run = run
        self.key = key
        self.entry = entry
        self.scope = scope
        self.producer: Producer | None = None
        self.relay: Relay | None = None

    def deliver(self, response: InferResponse | None, is_final: bool) -> None:
        self.run.on_response(self, response, is_final)


class Run:
    __slots__ = (
        "_inflight",
        "_last_key",
        "_num_starting",
        "_owner",
        "_plan",
        "is_over",
        "job",
        "route",
        "times",
    )

    def __init__(self, owner: RunOwner, job: Job) -> None:
        self._owner = owner
        self._plan = owner.plan
        self.job = job
        self.route = self._plan.route(job.request.requested_outputs)
        self._inflight: dict[int, ResponseStream] = {}
        """The streams of running steps, by a number: if a consumer referred to its stream, both
        would be left to the garbage collector."""
        self._last_key = 0
        self._num_starting = 0
        """Above 0 while steps are being started: one that responds at once must not count as the
        last."""
        self.is_over = False
        self.times: list[BatchTimes] = []
        """The times of the executions that made the responses so far."""

    def start(self) -> None:
        root = Scope(self, None, None)
        shared, reshapes, tensors = self.route.shared, self._plan.input_reshapes, root.tensors
        for tensor in self.job.request.inputs:
            name = tensor.name
            if name in reshapes:
                tensor = reshapes[name].apply(tensor)
            tensors[name] = _read_only(tensor) if name in shared else tensor
        self.job.stream.on_cancel(self._cancel)
        if self._plan.is_decoupled:
            self.job.stream.on_flow(self._set_paused)
        self._start_steps(self.route.first, root)
        self._finish_if_done()

    def _start_steps(self, entries: list[RouteStep], scope: Scope) -> None:
        self._num_starting += 1
        for entry in entries:
            if not self.is_over:
                self._start_step(entry, scope)
        self._num_starting -= 1

    def _start_step(self, entry: RouteStep, scope: Scope) -> None:
        self._last_key = key = self._last_key + 1
        call = StepCall(self, key, entry, scope)
        try:
            job = Job(
                self._step_request(entry, scope),
                ResponseStream(),
                caller=self.job.caller,
                part=call,
                # The first step is the door of the ensemble.
                is_admitted=key > 1 or self.job.is_admitted,
            )
            stream = self._owner.infer(job)
        except NaiadError as error:
            self._fail(_with_empty_tensor(error, entry, scope))
            return
        self._inflight[key] = stream
        scope.num_open += 1
        if entry.step.is_decoupled:
            call.producer = Producer(stream)
        elif job.is_batched and stream is job.stream and scope.marks is None and job.caller is None:
            call.relay = self._owner.relay_of(entry, self.route)
        stream.deliver_to(call.deliver)

    def _step_request(self, entry: RouteStep, scope: Scope) -> InferRequest:
        step, outer, mark = entry.step, self.job.request, None
        inputs: list[Tensor] = []
        tensors, marks, conversions = scope.tensors, scope.marks, step.conversions
        for name, source in step.input_map.items():
            tensor = tensors.get(source)
            if tensor is not None:
                shape = tensor.shape
                if conversions and name in conversions:
                    shape = conversions[name].shape(shape)
                inputs.append(Tensor(name, tensor.datatype, shape, tensor.data))
            if marks is not None and source in marks:
                mark = marks[source]
        request = InferRequest(
            step.model_name,
            inputs,
            step.model_version,
            outer.id,
            entry.outputs,
            outer.parameters,
            outer.sequence_id,
            outer.sequence_start,
            outer.sequence_end,
            outer.priority,
            outer.timeout_us,
            outer.deadline_ns,
        )
        if not entry.num_awaited and outer.signature is not None:
            request.signature = outer.signature.step(entry.number, step)
        if mark is not None:
            mark.apply_to(request)
        request.identity, request.is_call = outer.identity, outer.is_call
        if outer.trace is not None:
            request.trace = outer.trace.child()
        return request

    def on_response(self, call: StepCall, response: InferResponse | None, is_final: bool) -> None:
        scope, producer = call.scope, call.producer
        if is_final:
            self._inflight.pop(call.key, None)
        if not self.is_over and response is not None:
            if response.error is not None:
                self._fail(response.error)
            elif producer is None:
                self._store_outputs(call.entry, scope, response)
            else:
                inner = Scope(self, scope, producer)
                scope.num_open += 1
                inner.num_open += 1
                producer.add(1, self._plan.max_inflight_requests)
                self._store_outputs(call.entry, inner, response)
                self._leave(inner)
        if is_final:
            self._leave(scope)
            self._finish_if_done()

    def _store_outputs(self, entry: RouteStep, scope: Scope, response: InferResponse) -> None:
        output_tensors, tensors = entry.output_tensors, scope.tensors
        for tensor in response.outputs:
            target = output_tensors.get(tensor.name)
            if target is not None:
                name, is_shared = target
                tensors[name] = _read_only(tensor) if is_shared else tensor
        if response.times is not None:
            self.times.append(response.times)
            if len(self.times) > MAX_TIMES:
                self.times = [self.total_times()]
        if response.parameters:
            self._store_parameters(entry, scope, response.parameters)
        scope.num_missing_outputs -= entry.num_outputs
        missing = scope.missing
        complete: list[RouteStep] = []
        for reader, count in entry.feeds:
            left = missing[reader.number] = missing[reader.number] - count
            if not left:
                complete.append(reader)
        if complete:
            self._start_steps(complete, scope)
        if not scope.num_missing_outputs and not self.is_over:
            self._respond(scope)

    def _store_parameters(
        self, entry: RouteStep, scope: Scope, parameters: dict[str, ParameterValue]
    ) -> None:
        """A step may say which sequence its outputs belong to. Its parameters go with the response
        that the step contributes to."""
        mark = SequenceMark.of(parameters, self.job.request)
        tensors = entry.step.output_map.values()
        if mark is not None:
            scope.marks = {**(scope.marks or {}), **dict.fromkeys(tensors, mark)}
        if any(name in self.route.outputs for name in tensors):
            scope.parameters = {**(scope.parameters or {}), **parameters}

    def _leave(self, scope: Scope) -> None:
        """Something in this scope has ended. A scope in which nothing is left closes, which may
        close the scope around it."""
        inner: Scope | None = scope
        while inner is not None:
            inner.num_open -= 1
            if inner.num_open:
                return
            if inner.producer is not None:
                inner.producer.add(-1, self._plan.max_inflight_requests)
            inner = inner.parent

    # Responses.

    def _respond(self, scope: Scope) -> None:
        """Called once per scope, when no output of it is missing any more."""
        tensors = scope.tensors
        outputs = [
            Tensor(name, tensor.datatype, tensor.shape, tensor.data)
            for name in self.route.outputs
            if (tensor := tensors.get(name)) is not None
        ]
        if len(outputs) < len(self.route.outputs) and log.is_verbose(1):
            for name in self.route.outputs:
                if name not in tensors:
                    log.verbose(1, f"Composing models did not output tensor {name}")
        if self._plan.output_conversions:
            conversions = self._plan.output_conversions
            outputs = [
                conversions[tensor.name].apply(tensor) if tensor.name in conversions else tensor
                for tensor in outputs
            ]
        if self._plan.output_reshapes:
            reshapes = self._plan.output_reshapes
            outputs = [
                reshapes[tensor.name].apply(tensor) if tensor.name in reshapes else tensor
                for tensor in outputs
            ]
        response = self.response(outputs)
        if scope.parameters is not None:
            response.parameters |= scope.parameters
        is_final = not self._plan.is_decoupled or self._is_done()
        if is_final:
            response.times = self._end(None)
        self.job.stream.put(response, is_final)

    def response(self, outputs: list[Tensor]) -> InferResponse:
        request, plan = self.job.request, self._plan
        parameters: dict[str, ParameterValue] = {
            "sequence_id": request.sequence_id,
            "sequence_start": request.sequence_start,
            "sequence_end": request.sequence_end,
        }
        return InferResponse(plan.name, plan.version, request.id, outputs, parameters)

    def _is_done(self) -> bool:
        """No step runs or is about to run."""
        return not self._inflight and not self._num_starting

    def _finish_if_done(self) -> None:
        if self.is_over or not self._is_done():
            return
        if self._plan.is_decoupled:
            self._end(None)
            self.job.stream.close()
            return
        id = self.job.request.id or "<id_unknown>"
        self._fail(
            invalid_arg(
                f"[request id: {id}] unexpected deadlock, at least one output is not set while no "
                "more ensemble steps can be made"
            )
        )

    def _fail(self, error: NaiadError) -> None:
        """The first failure ends the request; the steps that still run are cancelled."""
        if self.is_over:
            return
        failure = NaiadError(
            error.code, f"in ensemble '{self._plan.name}', {error.message}", error.retry_after_s
        )
        self._end(failure)
        for stream in list(self._inflight.values()):
            stream.cancel()
        self.job.stream.fail(failure, self._plan.name, self._plan.version, self.job.request.id)

    def _end(self, error: NaiadError | None) -> BatchTimes:
        self.is_over = True
        times = self.total_times()
        self._owner.on_end(self, times, error)
        return times

    def total_times(self) -> BatchTimes:
        """The sum of what the steps took, as Triton counts it: more than the elapsed time when
        steps ran in parallel."""
        start_ns = input_end_ns = output_start_ns = end_ns = self.job.queue_start_ns
        for times in self.times:
            input_end_ns += times.compute_input_end_ns - times.compute_start_ns
            output_start_ns += times.compute_output_start_ns - times.compute_start_ns
            end_ns += times.compute_end_ns - times.compute_start_ns
        return BatchTimes(start_ns, input_end_ns, output_start_ns, end_ns)

    def end_in_batch(self) -> None:
        """The last step was executed in a batch with those of other runs, which end together."""
        self.is_over = True
        self._inflight.clear()

    def _cancel(self) -> None:
        self._fail(NaiadError(Code.CANCELLED, "request was cancelled"))

    def _set_paused(self, is_paused: bool) -> None:
        for stream in list(self._inflight.values()):
            stream.pause(is_paused)


def _read_only(tensor: Tensor) -> Tensor:
    """A read-only tensor is copied for each reader, because a model may write to its inputs."""
    if isinstance(tensor.data, memoryview) and not tensor.data.readonly:
        return Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data.toreadonly())
    return tensor


def _with_empty_tensor(error: NaiadError, entry: RouteStep, scope: Scope) -> NaiadError:
    """Triton's sentence blames the request for a batch of no elements, which a step has sent."""
    if EMPTY_BATCH not in error.message:
        return error
    names = [
        name
        for name in entry.step.input_map.values()
        if name in scope.tensors and scope.tensors[name].shape[:1] == [0]
    ]
    return NaiadError(
        error.code,
        f"{error.message}; the ensemble's tensor '{names[0] if names else ''}' is empty: call the "
        "model from a model.py (BLS), which can leave the call out, or pad the tensor",
    )
