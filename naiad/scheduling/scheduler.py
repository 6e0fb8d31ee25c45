"""The interface of a scheduler: requests for one model version in, responses out.

A scheduler owns a request from `enqueue` until it hands it to an instance; the instance owns it
until its final response.
"""

from __future__ import annotations

from typing import Protocol

from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.instances.executor import Executor


class Scheduler(Protocol):
    def enqueue(self, request: InferRequest) -> ResponseStream:
        """Takes the request over. Raises NaiadError when it is refused at once; nothing has
        happened then."""
        ...

    def inflight(self) -> int:
        """Requests that were taken over and have not had their final response."""
        ...

    async def stop(self) -> None:
        """Refuses new requests and returns when none is in flight."""
        ...

    @property
    def resizable(self) -> Resizable | None:
        """The scheduler, or the one it wraps, that instances can be added to and removed from
        while it runs; None if there is none."""
        ...

    @property
    def sequences(self) -> SequenceKeeper | None:
        """The scheduler as the keeper of its sequences; None if its requests form no sequences."""
        ...


class Resizable(Protocol):
    """A scheduler whose instances can be added and removed while it runs."""

    def add_instance(self, instance: Executor) -> None: ...

    async def remove_instance(self, instance: Executor) -> None:
        """The instance gets no more batches. Returns when it has finished those that it has."""
        ...


class SequenceKeeper(Scheduler, Protocol):
    """A scheduler whose requests belong to sequences. After `stop` it still accepts requests that
    continue a sequence it has begun."""

    def has_sequence(self, id: int | str) -> bool:
        """Whether the sequence has begun and its last request has not arrived."""
        ...
