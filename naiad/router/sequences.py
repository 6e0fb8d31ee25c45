"""Which replica holds the state of a sequence, by model and sequence id.

In:  the sequence of each request: its id, and whether the request starts or ends it.
Out: the replica that has the sequence, while it lives; an error when one of its requests was lost.
Rule: a new sequence is placed by consistent hashing, so that several routers agree without talking
      to each other. It stays where it is when replicas come and go. What was not used for
      IDLE_S is forgotten, as the replicas' own idle limits do.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from naiad.errors import unavailable
from naiad.router.policies.session import HashRings
from naiad.router.replica import Replica

IDLE_S = 600.0
MAX_SEQUENCES = 200_000
GONE_MESSAGE = "the replica that had the sequence is gone, start it again"
BROKEN_MESSAGE = "a request of this sequence was refused or lost; start the sequence again"


class SequenceStep(msgspec.Struct, frozen=True):
    """What a request says about its sequence."""

    id: str
    is_start: bool = False
    is_end: bool = False
    owner: str = ""
    """Whose sequence it is: clients with different keys may use the same id."""
    raw_id: int | str = 0
    """The id as the client wrote it."""


class Sequences:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rings = HashRings()
        self._places: OrderedDict[tuple[str, str, str], tuple[Replica | str, float]] = OrderedDict()
        """Where a sequence is, or why it has ended although its client may not know."""

    def __len__(self) -> int:
        return len(self._places)

    def place(
        self,
        model: str,
        step: SequenceStep,
        candidates: Sequence[Replica],
        is_alive: Callable[[Replica], bool],
    ) -> Replica | None:
        """None if nobody can serve the request. Raises NaiadError for a sequence that must be
        started again. A replica that drains keeps its sequences; one that is down may come back
        with them, and would go on without what it has missed."""
        key = (model, step.owner, step.id)
        now_s = self._clock_s()
        self._forget_idle(now_s)
        place = self._places.pop(key, None)
        replica = None
        if place is not None and not step.is_start:
            if isinstance(place[0], str) or not is_alive(place[0]):
                reason = place[0] if isinstance(place[0], str) else GONE_MESSAGE
                self._places[key] = (reason, now_s)
                raise unavailable(reason)
            replica = place[0]
        elif candidates:
            replica = self._rings.choose(f"{model}/{step.id}", candidates)
        if replica is not None and not step.is_end:
            self._places[key] = (replica, now_s)
        return replica

    def lose(self, model: str, step: SequenceStep) -> Replica | None:
        """A request of the sequence was refused or lost: the sequence must be started again.
        Returns the replica that has it."""
        key = (model, step.owner, step.id)
        now_s = self._clock_s()
        self._forget_idle(now_s)
        replica, _ = self._places.pop(key, (BROKEN_MESSAGE, 0.0))
        if isinstance(replica, str):
            self._places[key] = (replica, now_s)
            return None
        self._places[key] = (BROKEN_MESSAGE, now_s)
        return replica

    def _forget_idle(self, now_s: float) -> None:
        places = self._places
        while places:
            key = next(iter(places))
            if places[key][1] > now_s - IDLE_S and len(places) < MAX_SEQUENCES:
                return
            del places[key]
