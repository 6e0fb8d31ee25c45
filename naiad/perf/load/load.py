"""What all loads share: recording answers, and knowing when the server is gone.

In:  Listener calls from channels. Out: the Recorder fills; `broken` is set when nothing but
     connection failures comes.
Rule: a load sends from callbacks only; starting and stopping are the only things that wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from naiad.perf.channels.call import Call
from naiad.perf.load.level import Level
from naiad.perf.measure.recorder import Recorder

RETRY_S = 0.1
STOP_LIMIT_S = 30.0
_MAX_LOST_IN_ROW = 20


class ResponseFailureError(Exception):
    """A response that says that its request failed; raised by a digest."""


class Share(msgspec.Struct, frozen=True):
    """What falls to one of several processes that make a load together."""

    number: int = 0
    num_shares: int = 1
    num_requests: int = -1
    """Only so many in all; -1 for no end."""
    start_ns: int = 0
    """Where a schedule begins; the same for all."""


class Load:
    def __init__(
        self,
        recorder: Recorder,
        *,
        digest: Callable[[Any], Any] | None = None,
        check: Callable[[int, Any], str | None] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`digest` makes of each response what is kept of it; `check(item, payload)` says what is
        wrong with an answer."""
        self.recorder = recorder
        self.num_in_flight = 0
        self.num_sent = 0
        self.broken = asyncio.Event()
        self.last_error = ""
        self._digest = digest
        self._check = check
        self._clock_ns = clock_ns
        self._num_lost_in_row = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopping = False

    # Listener.

    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        if call.response_ns is None:
            call.response_ns = []
        if self._digest is not None:
            if call.responses is None:
                call.responses = []
            try:
                kept = self._digest(payload)
            except ResponseFailureError as failure:
                kept = failure
            if kept is None:
                return
            call.responses.append(kept)
        call.response_ns.append(now_ns)

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        self.num_in_flight -= 1
        if error is None and (call.responses is not None or self._check is not None):
            error = self._complaint(call, payload)
        if error is None:
            self._num_lost_in_row = 0
            responses = call.response_ns
            if payload is not None and responses is None and self._digest is not None:
                call.responses = [self._digest(payload)]
            self.recorder.add(call, 1 if responses is None else len(responses), now_ns)
        else:
            self._fail(call, error, now_ns)
        if not self.num_in_flight:
            self._idle.set()
        self.ended(call)

    # For the kinds of load.

    async def apply(self, level: Level, share: Share) -> None:
        """Be so strong from now on. Raises ConnectError."""
        raise NotImplementedError

    def ended(self, call: Call) -> None:
        """What comes after a request."""
        raise NotImplementedError

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Waits for what is out, then closes everything."""
        raise NotImplementedError

    @property
    def num_in_line(self) -> int:
        """Requests whose time has come, but that found no channel."""
        return 0

    @property
    def is_exhausted(self) -> bool:
        """Nothing more will be sent."""
        return False

    def _complaint(self, call: Call, payload: Any) -> str | None:
        for response in call.responses or ():
            if isinstance(response, ResponseFailureError):
                return str(response)
        return self._check(call.item, payload) if self._check is not None else None

    def _fail(self, call: Call, error: str, now_ns: int) -> None:
        self.last_error = error
        self.recorder.add_failure(error, now_ns)
        if call.is_lost:
            self._num_lost_in_row += 1
            if self._num_lost_in_row >= _MAX_LOST_IN_ROW:
                self.broken.set()

    def _departing(self, call: Call) -> None:
        self.num_in_flight += 1
        self.num_sent += 1
        self._idle.clear()
        call.sent_ns = self._clock_ns()

    async def drained(self, limit_s: float) -> bool:
        """Whether everything that was out came back in time."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
