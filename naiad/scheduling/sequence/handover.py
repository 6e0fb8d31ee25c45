"""A new copy of a sequence model replaces old ones: a sequence stays with the copy that began it.

In:  requests for the new copy. Out: a request that continues a sequence goes to the copy that has
     begun it; every other request goes to the new copy. A request that starts a sequence again ends
     the one that an old copy has.
Rule: however often a model is reloaded, one Handover stands in front of its current copy. It holds
      an old copy until that copy's sequences have ended.
"""

from __future__ import annotations

from naiad import log
from naiad.core.job import Job
from naiad.core.request import SequenceKey
from naiad.core.response import ResponseStream
from naiad.scheduling.scheduler import Resizable, SequenceKeeper
from naiad.scheduling.sequence.sequence import conflict_message


class Handover:
    def __init__(self, current: SequenceKeeper, replaced: SequenceKeeper) -> None:
        self._current = current
        self._older: list[SequenceKeeper] = []
        """Copies that still have open sequences, newest first. The Handovers of all copies of a
        version share this list, so that a copy that has stopped is removed for all of them."""
        if isinstance(replaced, Handover):
            self._older, replaced = replaced._older, replaced._current
        self._older.insert(0, replaced)

    def forget(self, stopped: SequenceKeeper) -> None:
        """Releases an old copy whose sequences have ended."""
        self._older.remove(stopped._current if isinstance(stopped, Handover) else stopped)

    # Scheduler.

    def enqueue(self, job: Job) -> ResponseStream:
        if not self._older:
            return self._current.enqueue(job)
        key = job.request.sequence_key
        owner = next((old for old in self._older if old.has_sequence(key)), None)
        if owner is None or self._current.has_sequence(key):
            return self._current.enqueue(job)
        if not job.request.sequence_start:
            return owner.enqueue(job)
        stream = self._current.enqueue(job)
        log.warning(conflict_message(job.request.sequence_id, job.request.model_name))
        owner.end_sequence(key)
        return stream

    def inflight(self) -> int:
        return self._current.inflight()

    async def stop(self) -> None:
        await self._current.stop()

    @property
    def resizable(self) -> Resizable | None:
        return self._current.resizable

    @property
    def sequences(self) -> SequenceKeeper:
        return self

    def has_sequence(self, key: SequenceKey) -> bool:
        return self._current.has_sequence(key) or any(
            scheduler.has_sequence(key) for scheduler in self._older
        )

    def end_sequence(self, key: SequenceKey) -> None:
        for scheduler in (self._current, *self._older):
            scheduler.end_sequence(key)

    def break_sequence(self, key: SequenceKey) -> None:
        for scheduler in (self._current, *self._older):
            scheduler.break_sequence(key)
