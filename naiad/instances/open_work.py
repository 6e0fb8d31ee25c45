"""What an instance has handed to its worker and not had back: batches, and requests until their
final response.

One per instance. Who sends (naiad.instances.execution) and who hands out the answers
(naiad.instances.responses) keep its containers at hand: they are emptied, never replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from naiad.core.clock import Timer
from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes
from naiad.core.trace import Trace

OnExecuted: TypeAlias = Callable[[list[InferRequest], list[InferRequest]], None]
"""Called with (requests, those of them that the model wants to see again) when `execute` has
returned, before any answer of the batch is delivered. Not called when the worker ended first: then
`on_state` is."""


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


class OpenWork:
    def __init__(self) -> None:
        self.batches: dict[int, Batch] = {}
        """By number, until `execute` has returned."""
        self.requests: dict[int, OpenRequest] = {}
        """By handle, until their final response."""
        self.abandoned: set[int] = set()
        """Handles of open requests whose caller is gone: they end when the model ends them, and
        nothing waits for that."""

    @property
    def inflight(self) -> int:
        """Requests whose answer somebody still waits for."""
        return len(self.requests) - len(self.abandoned)

    def pop(self, handle: int) -> OpenRequest | None:
        self.abandoned.discard(handle)
        return self.requests.pop(handle, None)

    def clear(self) -> list[InferRequest]:
        """All that were open."""
        requests = [entry.request for entry in self.requests.values()]
        self.requests.clear()
        self.abandoned.clear()
        for batch in self.batches.values():
            if batch.deadline is not None:
                batch.deadline.cancel()
        self.batches.clear()
        return requests

    def has(self, request: InferRequest) -> bool:
        return any(entry.request is request for entry in self.requests.values())

    def find_trace(self, id: int) -> Trace | None:
        """Of a request that the worker works on."""
        for entry in self.requests.values():
            trace = entry.request.trace
            if trace is not None and trace.id == id:
                return trace
        return None
