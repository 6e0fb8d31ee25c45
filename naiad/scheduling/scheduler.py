"""The interface of a scheduler: jobs for one model version in, responses out.

A scheduler owns a job from `enqueue` until it hands it to an instance; the instance owns it until
its final response.
"""

from __future__ import annotations

from typing import Protocol

from naiad.core.job import Job
from naiad.core.request import SequenceKey
from naiad.core.response import ResponseStream
from naiad.errors import NaiadError, unavailable
from naiad.instances.executor import Executor
from naiad.scheduling.queue import RETRY_AFTER_S


def stopping_error() -> NaiadError:
    """The error of a scheduler that has begun to stop."""
    return unavailable(
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
        RETRY_AFTER_S,
    )


def outage_error(reason: str) -> NaiadError:
    """The error of requests that would wait for a worker that does not come back soon."""
    return unavailable(f"no instance of the model is able to serve: {reason}", RETRY_AFTER_S)


class Scheduler(Protocol):
    def enqueue(self, job: Job) -> ResponseStream:
        """Accepts a job and returns where its responses come. Raises NaiadError when the job is
        refused at once; nothing has happened then."""
        ...

    def inflight(self) -> int:
        """Jobs that were accepted and have not had their final response."""
        ...

    async def stop(self) -> None:
        """Refuses new jobs and returns when none is in flight."""
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

    def holds_sequences(self, instance: Executor) -> bool:
        """Sequences that have begun on the instance keep it until they end."""
        ...

    async def remove_instance(self, instance: Executor) -> None:
        """The instance gets no more batches. Returns when it has finished those that it has."""
        ...


class SequenceKeeper(Scheduler, Protocol):
    """A scheduler whose requests belong to sequences. After `stop` it still accepts requests that
    continue a sequence it has begun."""

    def has_sequence(self, key: SequenceKey) -> bool:
        """Whether the sequence has begun and its last request has not arrived."""
        ...

    def end_sequence(self, key: SequenceKey) -> None:
        """The sequence ends when its waiting requests have been executed. Nothing happens if there
        is no such sequence."""
        ...

    def break_sequence(self, key: SequenceKey) -> None:
        """A request of the sequence was refused or lost: the sequence ends now, and its waiting
        requests fail. Nothing happens if there is no such sequence."""
        ...
