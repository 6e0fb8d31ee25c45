"""A new copy of a sequence model replaces old ones: a sequence stays with the copy that began it.

In:  requests for the new copy. Out: a request that continues a sequence goes to the copy that has
     begun it; every other request goes to the new copy.
Rule: however often a model is reloaded, one Handover stands in front of its current copy. It holds
      an old copy until that copy's sequences have ended.
"""

from __future__ import annotations

from naiad.core.job import Job
from naiad.core.response import ResponseStream
from naiad.scheduling.scheduler import Resizable, SequenceKeeper


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
        request, id = job.request, job.request.sequence_id
        # Newest first: a client may have started its sequence again on a newer copy, while the
        # first attempt waits in an old copy for its idle timeout.
        if self._older and not request.sequence_start and not self._current.has_sequence(id):
            for scheduler in self._older:
                if scheduler.has_sequence(id):
                    return scheduler.enqueue(job)
        return self._current.enqueue(job)

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

    def has_sequence(self, id: int | str) -> bool:
        return self._current.has_sequence(id) or any(
            scheduler.has_sequence(id) for scheduler in self._older
        )
