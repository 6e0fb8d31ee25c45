"""`session`: requests with the same header `x-session-id` go to the same replica.

A session is placed by consistent hashing, so that routers without shared state agree, and a replica
that comes or goes moves only the sessions that it must. Requests without the header are placed by
load.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from naiad.router.policies.least_load import LeastLoad

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest
    from naiad.router.replica import Replica

SESSION_HEADER = "x-session-id"
POINTS_PER_REPLICA = 128
_MAX_RINGS = 64


def hash_point(text: str) -> int:
    """Returns a number that is the same in every process, unlike Python's own hash."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


class HashRing:
    def __init__(self, names: Sequence[str]) -> None:
        points = sorted(
            (hash_point(f"{name}#{number}"), name)
            for name in names
            for number in range(POINTS_PER_REPLICA)
        )
        self._points = [point for point, _ in points]
        self._names = [name for _, name in points]

    def find(self, key: str) -> str:
        index = bisect.bisect(self._points, hash_point(key))
        return self._names[index % len(self._names)]


class HashRings:
    """The rings of the sets of replicas that were seen lately."""

    def __init__(self) -> None:
        self._rings: dict[tuple[str, ...], HashRing] = {}

    def choose(self, key: str, replicas: Sequence[Replica]) -> Replica:
        names = tuple(sorted(replica.name for replica in replicas))
        ring = self._rings.get(names)
        if ring is None:
            if len(self._rings) >= _MAX_RINGS:
                self._rings.clear()
            ring = self._rings[names] = HashRing(names)
        name = ring.find(key)
        return next(replica for replica in replicas if replica.name == name)


class Session:
    def __init__(self) -> None:
        self._rings = HashRings()
        self._least_load = LeastLoad()

    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
        session = request.header(SESSION_HEADER)
        if not session:
            return self._least_load.choose(request, replicas)
        return self._rings.choose(session, replicas)
