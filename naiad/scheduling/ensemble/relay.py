"""A whole batch of answers of one step of an ensemble -> the batch of the next step, or the answers
of the ensemble's requests.

In:  batches as their instance answers them (naiad.instances.responses). Out: the same requests, on
     their way to the next model as one batch. What one by one would be found out for each request
     again is looked at once: that the model serves and takes tensors of this form. Requests and
     their streams stay the same. Rule: whatever is out of the ordinary (a request that is
     cancelled, an answer of another form or with parameters, a model that schedules in another way)
     sends the batch the normal way, and nothing has happened yet then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor
from naiad.core.tensor_mapping import TensorMapping, build_mapping
from naiad.core.work import WorkResponse
from naiad.errors import NaiadError
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.scheduling.ensemble.plan import RouteStep
from naiad.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from naiad.scheduling.ensemble.ensemble import EnsembleScheduler
    from naiad.scheduling.ensemble.run import Run, StepCall


class Target(Protocol):
    """What a relay needs of a model (naiad.repository.model.Model)."""

    check: Callable[[InferRequest], None]
    scheduler: Scheduler


Find = Callable[[str, str], Target]
"""(model, version) -> what serves now. Raises NaiadError."""


class StepRelay:
    """From one step to the next."""

    def __init__(self, entry: RouteStep, heir: RouteStep, find: Find) -> None:
        self._heir = heir
        self._find = find
        made_by = {tensor: name for name, tensor in entry.step.output_map.items()}
        self._wanted = [(made_by[tensor], name) for name, tensor in heir.step.input_map.items()]
        self._known: weakref.ref[DynamicScheduler] | None = None
        """The scheduler that accepted this signature. Not kept alive: a copy of the model that is unloaded must go."""
        self._mapping: TensorMapping | None = None

    def take(
        self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes
    ) -> bool:
        found = self._mapping_for(responses[0].outputs)
        if found is None:
            return False
        scheduler, mapping = found
        calls = calls_of(self, requests, responses, mapping)
        if calls is None:
            return False
        heir, batch_size, now_ns = self._heir, mapping.batch_size, scheduler.now_ns()
        model_name, model_version, outputs, relay = (
            heir.step.model_name,
            heir.step.model_version,
            heir.outputs,
            heir.relay,
        )
        for request, response, call in zip(requests, responses, calls, strict=True):
            request.inputs = mapping.apply(response.outputs)
            request.model_name = model_name
            request.model_version = model_version
            request.requested_outputs = outputs
            request.batch_size = batch_size
            request.start_ns = request.queue_start_ns = now_ns
            call.entry = heir
            call.relay = relay
            call.run.times.append(times)
        scheduler.take_batch(requests, batch_size * len(requests))
        return True

    def _mapping_for(self, outputs: list[Tensor]) -> tuple[DynamicScheduler, TensorMapping] | None:
        """Who takes them now, and how."""
        step = self._heir.step
        try:
            target = self._find(step.model_name, step.model_version)
            scheduler = target.scheduler
            if not isinstance(scheduler, DynamicScheduler) or not scheduler.takes_batches:
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
            self._heir.step.model_name, inputs, requested_outputs=self._heir.outputs
        )
        target.check(request)
        return msgspec.structs.replace(mapping, batch_size=request.batch_size)


class AnswerRelay:
    """From the last step to whoever asked the ensemble."""

    def __init__(self, entry: RouteStep, ensemble: EnsembleScheduler, outputs: list[str]) -> None:
        self._ensemble = ensemble
        made_by = {tensor: name for name, tensor in entry.step.output_map.items()}
        self._wanted = [(made_by[tensor], tensor) for tensor in outputs]
        self._mapping: TensorMapping | None = None

    def take(
        self, requests: list[InferRequest], responses: list[WorkResponse], times: BatchTimes
    ) -> bool:
        mapping, first = self._mapping, responses[0].outputs
        if mapping is None or not mapping.signature.matches(first):
            mapping = self._mapping = build_mapping(first, self._wanted, 1)
        calls = calls_of(self, requests, responses, mapping) if mapping is not None else None
        if mapping is None or calls is None:
            return False
        runs: list[Run] = []
        for request, call in zip(requests, calls, strict=True):
            assert request.stream is not None
            request.stream.is_closed = True
            call.run.times.append(times)
            runs.append(call.run)
        self._ensemble.finish(runs, [mapping.apply(response.outputs) for response in responses])
        return True


def calls_of(
    relay: object,
    requests: list[InferRequest],
    responses: list[WorkResponse],
    mapping: TensorMapping,
) -> list[StepCall] | None:
    """The step of each request; None unless every request is at this relay and every response
    matches the mapping's signature (the first does) and has no parameters."""
    calls: list[StepCall] = []
    matches = mapping.signature.matches
    for request, response in zip(requests, responses, strict=True):
        call: Any = request.part
        if call is None or call.relay is not relay or response.parameters or call.run.is_over:
            return None
        if not matches(response.outputs):
            return None
        calls.append(call)
    return calls
