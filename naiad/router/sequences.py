"""Which replica holds the state of a sequence, by model and sequence id.

In:  the sequence of each request: its id, and whether the request starts or ends it.
Out: the replica that has the sequence, while it lives.
Rule: a new sequence is placed by consistent hashing, so that several routers agree without talking
      to each other. It stays where it is when replicas come and go. What was not used for
      IDLE_S is forgotten, as the replicas' own idle limits do.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from naiad.router.policies.session import HashRings
from naiad.router.replica import Replica

IDLE_S = 600.0
MAX_SEQUENCES = 200_000


class SequenceStep(msgspec.Struct, frozen=True):
    """What a request says about its sequence."""

    id: str
    is_start: bool = False
    is_end: bool = False


class Sequences:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._rings = HashRings()
        self._places: OrderedDict[tuple[str, str], tuple[Replica, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def place(
        self,
        model: str,
        step: SequenceStep,
        candidates: Sequence[Replica],
        is_alive: Callable[[Replica], bool],
    ) -> Replica | None:
        """None if nobody can serve the request. A replica that drains keeps its sequences; one that
        is down has lost them, and the next replica will say so."""
        key = (model, step.id)
        now_s = self._clock_s()
        self._forget_idle(now_s)
        place = self._places.pop(key, None)
        replica = None
        if place is not None and not step.is_start and is_alive(place[0]):
            replica = place[0]
        elif candidates:
            replica = self._rings.choose(f"{model}/{step.id}", candidates)
        if replica is not None and not step.is_end:
            self._places[key] = (replica, now_s)
        return replica

    def _forget_idle(self, now_s: float) -> None:
        places = self._places
        while places:
            key = next(iter(places))
            if places[key][1] > now_s - IDLE_S and len(places) < MAX_SEQUENCES:
                return
            del places[key]
