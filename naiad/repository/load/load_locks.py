"""Who may change which models now: requests for related models (an ensemble and its parts) take
turns, others go side by side.

In:  the keys that a change touches, and which model asked for it, if one did. Out: a turn, held for
     as long as the change takes.
Rule: a change that would wait for itself (a model whose `initialize` loads a model that waits for
      this very load) is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from naiad.errors import NaiadError, unavailable

RETRY_AFTER_S = 1


class Turn:
    def __init__(self, caller: str, parent: Turn | None) -> None:
        self.caller = caller
        """The instance whose model asked for it, if one did."""
        self.parent = parent
        """The turn whose model asked for this one, and does not become ready before this one
        ends."""
        self.keys: frozenset[str] = frozenset()
        self.starting: set[str] = set()
        """Instance groups of which new instances are starting now."""
        self.waits_for: Turn | None = None
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def has_ancestor(self, other: Turn) -> bool:
        turn: Turn | None = self
        while turn is not None:
            if turn is other:
                return True
            turn = turn.parent
        return False


class Turns:
    def __init__(self) -> None:
        self._running: list[Turn] = []
        self._waiting: list[Turn] = []
        self._surveys: dict[int, list[frozenset[str]]] = {}
        """For each survey that is under way, the keys of the turns that have ended meanwhile."""

    @contextlib.asynccontextmanager
    async def take(
        self, survey: Callable[[], Awaitable[set[str]]], caller: str = ""
    ) -> AsyncIterator[Turn]:
        """`survey` tells the keys; it is asked again after each wait, because the disk may have
        changed. Raises NaiadError."""
        turn = Turn(caller, self._turn_starting(caller))
        while True:
            keys = await self._survey(survey)
            holder = next(
                (other for other in self._running if not keys.isdisjoint(other.keys)), None
            )
            if holder is None:
                break
            if self._ends_after(holder, turn):
                raise conflict(keys & holder.keys)
            await self._wait(turn, holder)
        turn.keys = frozenset(keys)
        self._running.append(turn)
        try:
            yield turn
        finally:
            self._running.remove(turn)
            turn.end.set_result(None)
            for ended in self._surveys.values():
                ended.append(turn.keys)

    async def _survey(self, survey: Callable[[], Awaitable[set[str]]]) -> set[str]:
        """What it saw holds now: no turn of a related model has ended since it began to look."""
        while True:
            ended: list[frozenset[str]] = []
            self._surveys[id(ended)] = ended
            try:
                keys = await survey()
            finally:
                del self._surveys[id(ended)]
            if all(keys.isdisjoint(others) for others in ended):
                return keys

    async def _wait(self, turn: Turn, holder: Turn) -> None:
        turn.waits_for = holder
        self._waiting.append(turn)
        try:
            await asyncio.shield(holder.end)
        finally:
            self._waiting.remove(turn)
            turn.waits_for = None

    def _turn_starting(self, caller: str) -> Turn | None:
        return next((turn for turn in self._running if group_of(caller) in turn.starting), None)

    def _ends_after(self, holder: Turn, turn: Turn) -> bool:
        """Cannot `holder` end before `turn` does? A turn ends after those that its starting models
        asked for."""
        seen: list[Turn] = []
        open_turns = [holder]
        while open_turns:
            other = open_turns.pop()
            if other in seen:
                continue
            seen.append(other)
            if turn.has_ancestor(other):
                return True
            open_turns += [
                child for child in self._running + self._waiting if child.parent is other
            ]
            if other.waits_for is not None:
                open_turns.append(other.waits_for)
        return False


def group_of(instance_name: str) -> str:
    """Instances are called after their group, with a number."""
    return instance_name.rpartition("_")[0]


def conflict(keys: set[str]) -> NaiadError:
    return unavailable(
        f"a related model '{min(keys)}' to a load/unload request is currently loading or unloading",
        RETRY_AFTER_S,
    )
