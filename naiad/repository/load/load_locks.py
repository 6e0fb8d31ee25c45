"""Locks for loads and unloads: requests for related models (an ensemble and its parts) run one
after the other, requests for unrelated models run at the same time.

In:  the scope of a request, and the instance whose model made the request, if one did. Out: a
     LoadLock, held until the request is done.
Rule: a request that would wait for itself is refused. This happens when a model's `initialize`
      loads a model that is related to its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from naiad.errors import NaiadError, unavailable
from naiad.repository.load.load_scope import LoadScope

RETRY_AFTER_S = 1

FindScope = Callable[[], Awaitable[LoadScope]]


class LoadLock:
    def __init__(self, caller: str, parent: LoadLock | None) -> None:
        self.caller = caller
        """The instance whose model made the request; empty if none did."""
        self.parent = parent
        """The lock of the load whose starting model made this request. That load cannot finish
        before this one."""
        self.scope = LoadScope(frozenset())
        self.starting: set[str] = set()
        """Instance groups that have new instances starting now."""
        self.waits_for: LoadLock | None = None
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def has_ancestor(self, other: LoadLock) -> bool:
        """Whether this lock is `other`, or was requested on behalf of it."""
        lock: LoadLock | None = self
        while lock is not None:
            if lock is other:
                return True
            lock = lock.parent
        return False


class LoadLocks:
    def __init__(self) -> None:
        self._held: list[LoadLock] = []
        self._waiting: list[LoadLock] = []
        self._released_during: dict[int, list[frozenset[str]]] = {}
        """For each scope that is being read now, the keys of the locks released meanwhile."""

    @contextlib.asynccontextmanager
    async def acquire(self, find_scope: FindScope, caller: str = "") -> AsyncIterator[LoadLock]:
        """Calls `find_scope` again after each wait, because the disk may have changed. Raises
        NaiadError if the request would wait for itself."""
        lock = LoadLock(caller, self._find_parent(caller))
        while True:
            scope = await self._current_scope(find_scope)
            holder = next(
                (other for other in self._held if not scope.keys.isdisjoint(other.scope.keys)),
                None,
            )
            if holder is None:
                break
            if self._would_deadlock(lock, holder):
                raise conflict(scope.keys & holder.scope.keys)
            await self._wait(lock, holder)
        lock.scope = scope
        self._held.append(lock)
        try:
            yield lock
        finally:
            self._held.remove(lock)
            lock.released.set_result(None)
            for released in self._released_during.values():
                released.append(scope.keys)

    async def _current_scope(self, find_scope: FindScope) -> LoadScope:
        """A scope that no related request has made out of date while it was read."""
        while True:
            released: list[frozenset[str]] = []
            self._released_during[id(released)] = released
            try:
                scope = await find_scope()
            finally:
                del self._released_during[id(released)]
            if all(scope.keys.isdisjoint(keys) for keys in released):
                return scope

    async def _wait(self, lock: LoadLock, holder: LoadLock) -> None:
        lock.waits_for = holder
        self._waiting.append(lock)
        try:
            await asyncio.shield(holder.released)
        finally:
            self._waiting.remove(lock)
            lock.waits_for = None

    def _find_parent(self, caller: str) -> LoadLock | None:
        return next((lock for lock in self._held if group_of(caller) in lock.starting), None)

    def _would_deadlock(self, lock: LoadLock, holder: LoadLock) -> bool:
        """Whether `holder` cannot be released before `lock` is. A lock is released after the locks
        that its starting models requested, and after the one it waits for."""
        seen: list[LoadLock] = []
        unvisited = [holder]
        while unvisited:
            other = unvisited.pop()
            if other in seen:
                continue
            seen.append(other)
            if lock.has_ancestor(other):
                return True
            unvisited += [child for child in self._held + self._waiting if child.parent is other]
            if other.waits_for is not None:
                unvisited.append(other.waits_for)
        return False


def group_of(instance_name: str) -> str:
    """An instance is named after its group, with a number appended."""
    return instance_name.rpartition("_")[0]


def conflict(keys: frozenset[str]) -> NaiadError:
    return unavailable(
        f"a related model '{min(keys)}' to a load/unload request is currently loading or unloading",
        RETRY_AFTER_S,
    )
