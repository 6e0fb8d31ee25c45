"""The relay of an ensemble: a whole batch of one step's responses -> the batch of the next step, or
the responses of the ensemble.

In:  batches as their instance has executed them (naiad.instances.responses). Out: the same jobs, as
     one batch for the next model. What would be checked for each request is checked once: that the
     next model serves and accepts tensors with this signature. The jobs and their streams stay the
     same.
Rule: a relay declines a batch with any exception in it (a job that is cancelled, a response with
      another signature or with parameters, a model with another scheduler). Nothing has happened
      then, and each response is delivered by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from naiad.core.job import Job, ModelResponse
from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor
from naiad.core.tensor_mapping import TensorMapping, build_mapping
from naiad.errors import NaiadError
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.ensemble.plan import RouteStep
from naiad.scheduling.ensemble.run import Run, StepCall
from naiad.scheduling.scheduler import Scheduler


class Target(Protocol):
    """What a relay needs to know about a model (naiad.repository.model.Model)."""

    @property
    def check(self) -> Callable[[InferRequest], None]:
        """Raises NaiadError for a request that the model does not accept; sets its batch size."""
        ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def spec(self) -> ModelSpec: ...


Find = Callable[[str, str], Target]
"""(model, version) -> the model that serves now. Raises NaiadError."""


class RunFinisher(Protocol):
    """An ensemble (naiad.scheduling.ensemble.ensemble.EnsembleScheduler)."""

    def finish(self, runs: list[Run], outputs: list[list[Tensor]]) -> None: ...


class StepRelay:
    """Sends batches from one step to the next."""

    def __init__(self, entry: RouteStep, successor: RouteStep, find: Find) -> None:
        self._successor = successor
        self._find = find
        made_by = {tensor: name for name, tensor in entry.step.output_map.items()}
        self._wanted = [
            (made_by[tensor], name) for name, tensor in successor.step.input_map.items()
        ]
        self._known: weakref.ref[DynamicScheduler] | None = None
        """The scheduler that accepted this signature. A weak reference, so that an unloaded copy of
        the model can be freed."""
        self._mapping: TensorMapping | None = None

    def forward(
        self, jobs: list[Job], responses: Sequence[ModelResponse], times: BatchTimes
    ) -> bool:
        found = self._mapping_for(responses[0].outputs)
        if found is None:
            return False
        scheduler, mapping = found
        calls = calls_of(self, jobs, responses, mapping)
        if calls is None:
            return False
        entry, batch_size, now_ns = self._successor, mapping.batch_size, scheduler.now_ns()
        model_name, model_version = entry.step.model_name, entry.step.model_version
        outputs, relay = entry.outputs, entry.relay
        for job, response, call in zip(jobs, responses, calls, strict=True):
            request = job.request
            request.inputs = mapping.apply(response.outputs)
            request.model_name = model_name
            request.model_version = model_version
            request.requested_outputs = outputs
            job.batch_size = batch_size
            job.start_ns = job.queue_start_ns = now_ns
            call.entry = entry
            call.relay = relay
            call.run.times.append(times)
        scheduler.enqueue_batch(jobs, batch_size * len(jobs))
        return True

    def _mapping_for(self, outputs: list[Tensor]) -> tuple[DynamicScheduler, TensorMapping] | None:
        """Who takes them now, and how."""
        step = self._successor.step
        try:
            target = self._find(step.model_name, step.model_version)
            scheduler = target.scheduler
            if not isinstance(scheduler, DynamicScheduler) or not scheduler.accepts_batches:
                return None
            if target.spec.shows_api_key:
                return None
            mapping = self._mapping
            if (
                mapping is None
                or self._known is None
                or self._known() is not scheduler
                or not mapping.signature.matches(outputs)
            ):
                mapping = self._mapping = self._learn(target, outputs)
                self._known = weakref.ref(scheduler)
        except NaiadError:
            return None
        return None if mapping is None else (scheduler, mapping)

    def _learn(self, target: Target, outputs: list[Tensor]) -> TensorMapping | None:
        """Raises NaiadError when the next model does not take it. Strings are checked one by one,
        so their form says nothing."""
        if any(tensor.datatype == "BYTES" for tensor in outputs):
            return None
        mapping = build_mapping(outputs, self._wanted, 1)
        if mapping is None:
            return None
        inputs = [
            Tensor(name, tensor.datatype, tensor.shape, tensor.data)
            for name, tensor in zip(mapping.names, mapping.select(outputs), strict=True)
        ]
        request = InferRequest(
            self._successor.step.model_name, inputs, requested_outputs=self._successor.outputs
        )
        target.check(request)
        return msgspec.structs.replace(mapping, batch_size=request.batch_size)


class FinalRelay:
    """Sends the responses of the last step to the clients of the ensemble."""

    def __init__(self, entry: RouteStep, ensemble: RunFinisher, outputs: list[str]) -> None:
        self._ensemble = ensemble
        made_by = {tensor: name for name, tensor in entry.step.output_map.items()}
        self._wanted = [(made_by[tensor], tensor) for tensor in outputs]
        self._mapping: TensorMapping | None = None

    def forward(
        self, jobs: list[Job], responses: Sequence[ModelResponse], times: BatchTimes
    ) -> bool:
        mapping, first = self._mapping, responses[0].outputs
        if mapping is None or not mapping.signature.matches(first):
            mapping = self._mapping = build_mapping(first, self._wanted, 1)
        calls = calls_of(self, jobs, responses, mapping) if mapping is not None else None
        if mapping is None or calls is None:
            return False
        runs: list[Run] = []
        for job, call in zip(jobs, calls, strict=True):
            job.stream.close_unseen()
            call.run.times.append(times)
            runs.append(call.run)
        self._ensemble.finish(runs, [mapping.apply(response.outputs) for response in responses])
        return True


def calls_of(
    relay: object,
    jobs: list[Job],
    responses: Sequence[ModelResponse],
    mapping: TensorMapping,
) -> list[StepCall] | None:
    """The step of each request; None unless every request is at this relay and every response
    matches the mapping's signature (the first does) and has no parameters."""
    calls: list[StepCall] = []
    matches = mapping.signature.matches
    for job, response in zip(jobs, responses, strict=True):
        call = job.part
        if not isinstance(call, StepCall) or call.relay is not relay:
            return None
        if response.parameters or call.run.is_over:
            return None
        if not matches(response.outputs):
            return None
        calls.append(call)
    return calls
