"""`least_load`: the replica with the fewest requests of this router in flight.

Rule: replicas with the same load get requests in turn, so that an idle fleet is used evenly and a
      burst is spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest
    from naiad.router.replica import Replica


class LeastLoad:
    def __init__(self) -> None:
        self._turn = 0

    def choose(self, request: RoutedRequest | None, replicas: Sequence[Replica]) -> Replica:
        count = len(replicas)
        start = self._turn = (self._turn + 1) % count
        best = replicas[start]
        least = best.num_in_flight
        if least:
            for offset in range(1, count):
                replica = replicas[(start + offset) % count]
                if replica.num_in_flight < least:
                    best, least = replica, replica.num_in_flight
                    if not least:
                        break
        return best
