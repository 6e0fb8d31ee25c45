"""The common part of all loads: records responses and detects that the server is gone.

In:  Listener calls from channels.
Out: entries in the Recorder. `broken` is set after too many connection failures in a row.
Rule: a load sends only from callbacks. Only starting and stopping wait.
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
from naiad.perf.report.failure_text import one_line

RETRY_S = 0.1
STOP_LIMIT_S = 30.0
_MAX_LOST_IN_ROW = 20


class ResponseFailureError(Exception):
    """Raised by a digest for a response that reports an error."""


class Share(msgspec.Struct, frozen=True):
    """One process's part of a load that several processes generate."""

    number: int = 0
    num_shares: int = 1
    num_requests: int = -1
    """Number of requests to send; -1 for no limit."""
    start_ns: int = 0
    """Start of the schedule, which is the same for all processes."""


class Load:
    def __init__(
        self,
        recorder: Recorder,
        *,
        digest: Callable[[Any], Any] | None = None,
        check: Callable[[int, Any], str | None] | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`digest` returns the part of a response to record, or None to ignore the response.
        `check(item, payload)` returns the error of a response, or None."""
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
            kept = self._digested(payload)
            if kept is None:
                return
            call.responses.append(kept)
        call.response_ns.append(now_ns)

    def on_end(self, call: Call, error: str | None, payload: Any, now_ns: int) -> None:
        self.num_in_flight -= 1
        if payload is not None and call.response_ns is None and self._digest is not None:
            call.responses = [self._digested(payload)] if error is None else None
        if error is None and (call.responses is not None or self._check is not None):
            error = self._failure(call, payload)
        if error is None:
            self._num_lost_in_row = 0
            responses = call.response_ns
            self.recorder.add(call, 1 if responses is None else len(responses), now_ns)
        else:
            self._fail(call, error, now_ns)
        if not self.num_in_flight:
            self._idle.set()
        self.on_ended(call)

    # Implemented by each kind of load.

    async def apply(self, level: Level, share: Share) -> None:
        """Sets the level of the load. Raises ConnectError."""
        raise NotImplementedError

    def on_ended(self, call: Call) -> None:
        """Called after a request has ended."""
        raise NotImplementedError

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Waits for requests in flight, then closes all channels."""
        raise NotImplementedError

    @property
    def num_queued(self) -> int:
        """Number of requests that are due but have no free channel."""
        return 0

    @property
    def is_exhausted(self) -> bool:
        """True if no further request will be sent."""
        return False

    def _failure(self, call: Call, payload: Any) -> str | None:
        for response in call.responses or ():
            if isinstance(response, ResponseFailureError):
                return str(response)
        try:
            return self._check(call.item, payload) if self._check is not None else None
        except Exception as error:
            return _unreadable(error)

    def _digested(self, payload: Any) -> Any:
        """What is recorded of a response, or a ResponseFailureError. An exception here would be the
        transport's, and the request would never end."""
        assert self._digest is not None
        try:
            return self._digest(payload)
        except ResponseFailureError as failure:
            return failure
        except Exception as error:
            return ResponseFailureError(_unreadable(error))

    def _fail(self, call: Call, error: str, now_ns: int) -> None:
        self.last_error = error
        self.recorder.add_failure(error, now_ns)
        if call.is_lost:
            self._num_lost_in_row += 1
            if self._num_lost_in_row >= _MAX_LOST_IN_ROW:
                self.broken.set()

    def _mark_sent(self, call: Call) -> None:
        self.num_in_flight += 1
        self.num_sent += 1
        self._idle.clear()
        call.sent_ns = self._clock_ns()

    async def _drain(self, limit_s: float) -> bool:
        """Waits for requests in flight. Returns False if they take longer than the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def _unreadable(error: Exception) -> str:
    return one_line(f"a response that cannot be read: {type(error).__name__}: {error}")
