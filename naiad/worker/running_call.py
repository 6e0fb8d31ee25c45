"""A BLS call as its caller sees it (naiad.backends.backend.Call): one that the server runs, or one
to which another worker has responded.

Responses wait here until the model asks for them. When too many wait, the called model is paused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from naiad.ipc.messages import CallFlow, CancelCall
from naiad.ipc.work import WorkResponse

if TYPE_CHECKING:
    from naiad.worker.calls import WorkerCalls

CALL_HIGH_WATER = 32
CALL_LOW_WATER = 8
"""When this many responses wait, the called model is paused (high) or goes on (low)."""


class RunningCall:
    def __init__(self, calls: WorkerCalls, number: int) -> None:
        self._calls = calls
        self._channel = calls.channel
        self._number = number
        self._events: deque[tuple[WorkResponse | None, bool]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False
        self._is_paused = False

    def next(self) -> tuple[WorkResponse | None, bool]:
        self._channel.wait_until(lambda: bool(self._events))
        return self._next_event()

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        loop = asyncio.get_running_loop()
        if loop is self._calls.loop:
            while not self._events:
                self._waiter = loop.create_future()
                await self._waiter
        else:
            # An event loop that the model started: nobody reads the channel for it, so a thread of
            # that loop's executor does.
            await loop.run_in_executor(None, self._channel.wait_until, lambda: bool(self._events))
        return self._next_event()

    def cancel(self) -> None:
        if not self._is_over:
            self._channel.send(CancelCall(self._number))

    def deliver(self, response: WorkResponse | None, is_final: bool) -> None:
        """Called by the thread that has read the message."""
        self._events.append((response, is_final))
        if len(self._events) >= CALL_HIGH_WATER and not self._is_paused and not is_final:
            self._is_paused = True
            self._channel.send(CallFlow(self._number, True))
        if self._waiter is not None and self._calls.loop is not None:
            waiter, self._waiter = self._waiter, None
            self._calls.loop.call_soon_threadsafe(_wake, waiter)

    def _next_event(self) -> tuple[WorkResponse | None, bool]:
        response, is_final = self._events.popleft()
        if is_final:
            self._is_over = True
        elif self._is_paused and len(self._events) <= CALL_LOW_WATER:
            self._is_paused = False
            self._channel.send(CallFlow(self._number, False))
        if response is not None:
            self._channel.link.resolve(response.outputs)
        return response, is_final


class DoneCall:
    """A BLS call that went from worker to worker and has its response."""

    def __init__(self, response: WorkResponse) -> None:
        self._response = response

    def next(self) -> tuple[WorkResponse | None, bool]:
        return self._response, True

    async def anext(self) -> tuple[WorkResponse | None, bool]:
        return self._response, True

    def cancel(self) -> None:
        pass


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
