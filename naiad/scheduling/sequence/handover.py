"""A new copy of a sequence model in the place of an old one: sequences that the old one has begun
stay with it until their end.

In:  requests for the new copy. Out: those of a sequence that the old copy holds go there, all
     others to the new one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream


@runtime_checkable
class SequenceKeeper(Protocol):
    """A scheduler whose requests belong to sequences. While it stops, it still takes those of
    sequences that it has begun."""

    def has_sequence(self, id: int | str) -> bool: ...

    def enqueue(self, request: InferRequest) -> ResponseStream: ...

    def inflight(self) -> int: ...

    async def stop(self) -> None: ...


class Handover:
    def __init__(self, new: SequenceKeeper, old: SequenceKeeper) -> None:
        self._new = new
        self._old = old

    def has_sequence(self, id: int | str) -> bool:
        return self._new.has_sequence(id) or self._old.has_sequence(id)

    def enqueue(self, request: InferRequest) -> ResponseStream:
        if not request.sequence_start and self._old.has_sequence(request.sequence_id):
            return self._old.enqueue(request)
        return self._new.enqueue(request)

    def inflight(self) -> int:
        return self._new.inflight()

    async def stop(self) -> None:
        await self._new.stop()
