"""A request on its way through the server: the request itself, and what the server notes about it.

In:  made by InferenceCore for a client's request, and by ensembles and BLS for the requests that
     they make on behalf of another. Out: handed from scheduler to instance.
Rule: an InferRequest says what is wanted; a Job says how far it has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import ResponseStream
from naiad.core.statistics import BatchTimes
from naiad.core.tensor import Tensor


class Caller(Protocol):
    """A call that a model has made (naiad.instances.call_graph.OutgoingCall)."""

    def enter(self, job: Job, model_name: str, instances: Sequence[Any]) -> None:
        """Raises NaiadError when the job would wait for ever."""
        ...


class ModelResponse(Protocol):
    """A response as it comes from a worker (naiad.ipc.work.WorkResponse)."""

    outputs: list[Tensor]
    parameters: dict[str, ParameterValue]


class Relay(Protocol):
    """Knows what follows a step of an ensemble (naiad.scheduling.ensemble.relay)."""

    def forward(
        self, jobs: list[Job], responses: Sequence[ModelResponse], times: BatchTimes
    ) -> bool:
        """Sends on a batch whose first job belongs to this step. False when nothing has happened:
        each response must be delivered by itself."""
        ...


class EnsemblePart(Protocol):
    """The place of a job in an ensemble (naiad.scheduling.ensemble.run.StepCall)."""

    relay: Relay | None


class Job(msgspec.Struct, eq=False, weakref=True):
    request: InferRequest
    stream: ResponseStream
    start_ns: int = 0
    batch_size: int = 1
    queue_start_ns: int = 0
    queued_in: object | None = None
    """The level of a queue that holds the job (naiad.scheduling.queue); None while none does."""
    turn: float = 0.0
    """The job's place among those of other API keys in the same level."""
    is_null: bool = False
    """The job fills an empty slot of a sequence batch. It is not counted, and nobody waits for its
    response."""
    is_inner: bool = False
    """The job was made on behalf of another one, so it is served while the server drains."""
    is_admitted: bool = False
    """Work for the request that led to this job has begun: the job is not refused for load, unless
    a model's config limits its queue."""
    is_batched: bool = False
    """The job went through a dynamic scheduler, which forgets it once an instance executes it."""
    caller: Caller | None = None
    """The call that led to this job."""
    part: EnsemblePart | None = None
