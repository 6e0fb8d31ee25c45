"""Whether connections should move from one frontend process to others, because it has most of the
work.

In:  how busy each frontend was since it was last asked. Out: which one gives connections up, and
     what part of those that it works for.
Rule: pure. Connections are shared out by number when they arrive; this mends what their numbers do
      not show: a few clients that send much.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

F = TypeVar("F", bound=Hashable)

MIN_BUSY = 0.5
"""A frontend that has work for less of the time needs no help."""
MIN_DIFFERENCE = 0.3


class Unevenness(msgspec.Struct, Generic[F], frozen=True):
    hottest: F
    share: float
    """The part of its work that would make it as busy as the coldest one, when that has it."""


def find_unevenness(busy: Mapping[F, float]) -> Unevenness[F] | None:
    """`busy` is the part of the time in which each frontend had work. None: nothing should move."""
    if len(busy) < 2:
        return None
    hottest = max(busy, key=lambda one: busy[one])
    highest, lowest = busy[hottest], min(busy.values())
    if highest < MIN_BUSY or highest - lowest < MIN_DIFFERENCE:
        return None
    return Unevenness(hottest, (highest - lowest) / (2 * highest))
