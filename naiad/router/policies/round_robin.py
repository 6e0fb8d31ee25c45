"""`round_robin`: one replica after the other, whatever their load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naiad.router.policy import RoutedRequest
    from naiad.router.replica import Replica


class RoundRobin:
    def __init__(self) -> None:
        self._turn = -1

    def choose(self, request: RoutedRequest, replicas: Sequence[Replica]) -> Replica:
        self._turn = (self._turn + 1) % len(replicas)
        return replicas[self._turn]
