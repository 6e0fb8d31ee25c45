"""The only timer of an endpoint: once per second every connection checks its deadlines.

In:  the endpoint's set of connections. Out: `check(connection)` for each of them.
Rule: a sweep is divided into slices, one per turn of the event loop, so that ten thousand
      connections, or a few with hundreds of calls that time out together, do not delay a request.
      A connection costs nothing between sweeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

INTERVAL_S = 1.0
SLICE_CONNECTIONS = 256
SLICE_S = 0.005
"""The check of another connection is not begun after so long."""

ConnectionT = TypeVar("ConnectionT")


class Sweep(Generic[ConnectionT]):
    def __init__(self, connections: set[ConnectionT], check: Callable[[ConnectionT], None]) -> None:
        self._connections = connections
        self._check = check
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle | None = None
        self._rest: list[ConnectionT] = []

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Does nothing if the sweep runs already."""
        if self._timer is None:
            self._loop = loop
            self._timer = loop.call_later(INTERVAL_S, self._begin)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._begin)
        if not self._rest:  # otherwise the last sweep is still under way
            self._rest = list(self._connections)
            self._continue()

    def _continue(self) -> None:
        end_s = self._loop.time() + SLICE_S
        for _ in range(min(SLICE_CONNECTIONS, len(self._rest))):
            connection = self._rest.pop()
            if connection in self._connections:
                self._check(connection)
                if self._loop.time() > end_s:
                    break
        if self._rest:
            self._loop.call_soon(self._continue)
