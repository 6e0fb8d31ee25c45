"""What an instance has handed to its worker and not got back: batches until `execute` returns, and
jobs until their final response.

There is one `InFlight` per instance. The part that sends (naiad.instances.execution) and the part
that receives (naiad.instances.responses) share it.
Invariant: while a batch is in `batches`, it holds the instance's permit and is counted by the busy
           poll. A bundle (naiad.core.bundle) belongs to its batch alone; when it is divided, its
           jobs are in `jobs` like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from naiad.core.bundle import Bundle
from naiad.core.clock import Timer
from naiad.core.identity import Identity, common_identity
from naiad.core.job import Job
from naiad.core.statistics import BatchTimes
from naiad.core.trace import Trace
from naiad.instances.busy_poll import BusyPoll
from naiad.instances.instance_plan import Permit

OnExecuted: TypeAlias = Callable[[list[Job], list[Job]], None]
"""Called with (jobs, those of them that the model wants to see again) when `execute` has
returned, before any response of the batch is delivered. It is not called when the worker ended
first: the observers of the instance are told then."""


class OpenBundle(NamedTuple):
    handle: int
    """The handle of its first request; the others follow."""
    bundle: Bundle


class Batch(msgspec.Struct, eq=False):
    jobs: list[Job]
    handles: list[int]
    """The first handle is also the number of the batch. Those of bundles come last."""
    batch_size: int
    compute_start_ns: int
    times: BatchTimes | None = None
    """Known when `execute` has returned."""
    deadline: Timer | None = None
    on_executed: OnExecuted | None = None
    bundles: list[OpenBundle] = []


class OpenJob(msgspec.Struct, eq=False):
    job: Job
    batch: Batch
    num_responses: int = 0


class InFlight:
    def __init__(self, busy_poll: BusyPoll | None = None, permit: Permit | None = None) -> None:
        self._busy_poll = busy_poll
        self._permit = permit
        self.next_handle = 1
        self.batches: dict[int, Batch] = {}
        """Keyed by the number of the batch."""
        self.jobs: dict[int, OpenJob] = {}
        """Keyed by handle."""
        self.num_bundled = 0
        """Requests in bundles."""
        self.abandoned: set[int] = set()
        """Handles of jobs whose caller is gone. They end when the model ends them, and nothing
        waits for that."""

    @property
    def num_batches(self) -> int:
        return len(self.batches)

    @property
    def oldest_start_ns(self) -> int:
        """When the oldest batch began to execute; 0 if none does."""
        for batch in self.batches.values():
            return batch.compute_start_ns
        return 0

    @property
    def num_awaited(self) -> int:
        """Requests whose final response somebody waits for."""
        return len(self.jobs) - len(self.abandoned) + self.num_bundled

    def add_batch(self, number: int, batch: Batch) -> None:
        """`jobs` already holds the jobs of the batch."""
        self.next_handle = number + len(batch.handles)
        self.batches[number] = batch
        if self._busy_poll is not None:
            self._busy_poll.on_batch_sent(len(batch.handles), batch.compute_start_ns)
        if self._permit is not None:
            self._permit.acquire()

    def end_batch(self, number: int) -> Batch | None:
        """The worker has no such batch any more. None when it never had it."""
        batch = self.batches.pop(number, None)
        if batch is not None:
            self._release(batch)
        return batch

    def end_job(self, handle: int) -> OpenJob | None:
        self.abandoned.discard(handle)
        return self.jobs.pop(handle, None)

    def divide(self, handle: int) -> None:
        """Divides the bundle that has the request with this handle, if there is one."""
        for batch in self.batches.values():
            for first, bundle in batch.bundles:
                if first <= handle < first + len(bundle.handles):
                    bundle.divide()

    def clear(self) -> list[Job]:
        """Ends everything; returns the jobs that had no final response."""
        for batch in self.batches.values():
            for _, bundle in batch.bundles:
                bundle.divide()
        jobs = [entry.job for entry in self.jobs.values()]
        self.jobs.clear()
        self.abandoned.clear()
        batches = list(self.batches.values())
        self.batches.clear()
        for batch in batches:
            self._release(batch)
        return jobs

    def _release(self, batch: Batch) -> None:
        if batch.deadline is not None:
            batch.deadline.cancel()
        if self._busy_poll is not None:
            self._busy_poll.on_batch_done()
        if self._permit is not None:
            self._permit.release()

    def has(self, job: Job) -> bool:
        return any(entry.job is job for entry in self.jobs.values())

    def find_identity(self, handles: list[int]) -> Identity | None:
        """The API key that these requests came with, or all that the worker executes if the list is
        empty. None if they came with different keys, or if one is not known."""
        if self.num_bundled and not handles:
            return None  # requests in bundles have no key
        known = self.jobs.values() if not handles else map(self.jobs.get, handles)
        return common_identity(
            None if entry is None else entry.job.request.identity for entry in known
        )

    def find_trace(self, id: int) -> Trace | None:
        """The trace with this number, if it belongs to a job that the worker executes."""
        for entry in self.jobs.values():
            trace = entry.job.request.trace
            if trace is not None and trace.id == id:
                return trace
        return None
