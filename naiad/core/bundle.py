"""Requests that a frontend process has sent as one, and that stay one on their way through the
server process, so that the way costs little per request.

In:  made by naiad.frontend_process.session from requests for the same copy of a model that differ
     in id and data only. Out: queued, handed to an instance and responded to as a whole.
Rule: a bundle is handled as a whole only where all of its requests have the same fate. Whatever
      concerns one of them (it is cancelled, refused, fails, or its worker dies) divides the bundle
      into jobs first, which are handled like all others. So no rule exists twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, final

import msgspec

from naiad.core.job import Caller, EnsemblePart, Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream


class BundleSource(Protocol):
    """Where bundles come from and their responses go (naiad.frontend_process.session)."""

    def on_split(self, part: Bundle) -> None:
        """These requests have left their bundle, and are one of their own."""
        ...

    def on_divided(self, bundle: Bundle, jobs: list[Job]) -> None:
        """Each request is a job from now on, and its responses come to the stream of the job."""
        ...

    def on_responses(
        self, bundle: Bundle, model_name: str, model_version: str, outputs: list[msgspec.Raw]
    ) -> None:
        """All requests of the bundle have succeeded. These are their outputs, in order."""
        ...


@final  # so that `type(entry) is Bundle`, the cheapest test, tells mypy all
class Bundle(msgspec.Struct, eq=False):
    source: BundleSource
    request: InferRequest
    """What the requests have in common: the model, its version and the outputs."""
    handles: list[int]
    """The numbers by which the source knows the requests."""
    start_ns: list[int]
    ids: list[str]
    """Empty if none of the requests has an id."""
    inputs: list[msgspec.Raw]
    """The inputs of each request, as they travel to a worker."""
    batch_size: int = 1
    """The batch size of each request."""
    queue_start_ns: int = 0
    queued_in: object | None = None
    """As in a job (naiad.core.job)."""
    jobs: list[Job] | None = None
    """The requests as jobs, once the bundle has been divided."""
    on_divide: Callable[[Bundle, list[Job]], None] | None = None
    """Called when the bundle has been divided. The current owner (a queue or an instance)
    replaces the bundle by the jobs."""

    # As in jobs of requests that have no such thing.
    turn: float = 0.0
    is_inner: bool = False
    caller: Caller | None = None
    part: EnsemblePart | None = None

    def split(self, count: int) -> Bundle:
        """Removes the first `count` requests and returns them as a bundle of their own."""
        head = Bundle(
            self.source,
            self.request,
            self.handles[:count],
            self.start_ns[:count],
            self.ids[:count],
            self.inputs[:count],
            self.batch_size,
            self.queue_start_ns,
        )
        del self.handles[:count], self.start_ns[:count], self.ids[:count], self.inputs[:count]
        self.source.on_split(head)
        return head

    def divide(self) -> list[Job]:
        """Makes each request a job. Returns the jobs in the order of the handles."""
        if self.jobs is not None:
            return self.jobs
        common = self.request
        jobs = self.jobs = []
        for index, (start_ns, inputs) in enumerate(zip(self.start_ns, self.inputs, strict=True)):
            request = InferRequest(
                common.model_name,
                [],
                common.model_version,
                self.ids[index] if self.ids else "",
                common.requested_outputs,
            )
            request.batch_size = self.batch_size
            request.encoded_inputs = inputs
            job = Job(request, ResponseStream(), start_ns, self.batch_size, self.queue_start_ns)
            job.is_batched = True
            jobs.append(job)
        self.ids, self.inputs = [], []
        self.source.on_divided(self, jobs)
        on_divide, self.on_divide = self.on_divide, None
        if on_divide is not None:
            on_divide(self, jobs)
        return jobs


Queued: TypeAlias = Job | Bundle
"""What a queue holds and an instance executes."""
