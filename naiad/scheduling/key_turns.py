"""API keys take turns in a queue: one that floods does not delay another.

In:  the waiting jobs of one level, and a job that joins them. Out: the job stands in its place.
A job's turn is the number of earlier jobs of its key, divided by the key's weight; jobs are served
in order of their turns. A key that had no job waiting begins at the turn of the first job.
Rule: the order is decided when a job joins, so serving a queue costs nothing extra.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from naiad.core.bundle import Queued
from naiad.core.identity import Identity
from naiad.core.job import Job

MAX_KEYS = 1024


class KeyTurns:
    def __init__(self, waiting: Iterable[Job]) -> None:
        self._next: dict[str, float] = {}
        """The turn of the next job of each key."""
        for job in waiting:
            self._assign(job, 0.0)

    def insert(self, waiting: deque[Queued], job: Job) -> None:
        now = waiting[0].turn if waiting else 0.0
        if len(self._next) > MAX_KEYS:
            self._next = {key: turn for key, turn in self._next.items() if turn > now}
        turn = self._assign(job, now)
        if not waiting or waiting[-1].turn <= turn:
            waiting.append(job)
            return
        for index, other in enumerate(waiting):
            if other.turn > turn:
                waiting.insert(index, job)
                return

    def _assign(self, job: Job, earliest: float) -> float:
        identity = job.request.identity
        key_id = key_of(identity)
        turn = job.turn = max(earliest, self._next.get(key_id, 0.0))
        self._next[key_id] = turn + 1 / (1 if identity is None else identity.weight)
        return turn


def key_of(identity: Identity | None) -> str:
    return "" if identity is None else identity.key_id
