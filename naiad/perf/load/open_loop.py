"""A load with a request rate: requests are sent on schedule, independent of earlier responses.

Latency counts from the intended send time. If the client or the server falls behind, the delay is
part of the latency that a user would see.
Rule: a request without a free channel is queued. It is never dropped or rescheduled.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from naiad.perf.channels.call import Call, ClientChannel, Listener
from naiad.perf.channels.channel_pool import MAX_CHANNELS, ChannelPool
from naiad.perf.load.level import Level
from naiad.perf.load.load import STOP_LIMIT_S, Load, Share
from naiad.perf.load.precise_timer import WakeTimer, make_timer
from naiad.perf.load.request_source import Source
from naiad.perf.measure.recorder import Recorder

_WARM_CHANNELS = 16
_NEVER = 1 << 62
_LEAD_NS = 20_000_000
"""Time between the start of a schedule and its first request."""
_MAX_LEAD_NS = 50_000
_MAX_BURST = 64
"""Maximum number of requests per wake-up, so that responses are read in between."""


class OpenLoop(Load):
    def __init__(
        self,
        recorder: Recorder,
        make_channel: Callable[[Listener], ClientChannel],
        source: Source,
        *,
        max_channels: int = MAX_CHANNELS,
        **options: Any,
    ) -> None:
        super().__init__(recorder, **options)
        self._pool = ChannelPool(lambda: make_channel(self), max_channels)
        self._source = source
        self._schedule: Iterator[int] = iter(())
        self._next_ns = self._alarm_ns = _NEVER
        self._lead_ns = 0.0
        self._timer: WakeTimer | None = None
        self._queue: deque[tuple[bytes, Call]] = deque()
        self._busy: dict[Call, ClientChannel] = {}

    async def open(self) -> None:
        """Raises ConnectError."""
        await self._pool.warm(_WARM_CHANNELS)

    async def apply(self, level: Level, share: Share) -> None:
        await self.open()
        times = level.schedule(
            share.start_ns or self._clock_ns() + _LEAD_NS, share.number, share.num_shares
        )
        self._schedule = (
            times if share.num_requests < 0 else itertools.islice(times, share.num_requests)
        )
        if self._timer is None:
            self._timer = make_timer(self._fire)
        self._next_ns = next(self._schedule, _NEVER)
        self._set_timer(self._timer)
        # Returns when the schedule begins. A window that started earlier would show too low a rate.
        await asyncio.sleep(
            max(0, (self._next_ns if self._next_ns != _NEVER else 0) - self._clock_ns()) / 1e9
        )

    def _set_timer(self, timer: WakeTimer) -> None:
        """Sets the timer early by the recent wake-up delay; `_fire` spins for the rest of the
        wait."""
        self._alarm_ns = self._next_ns - round(self._lead_ns)
        timer.set(self._alarm_ns)

    def _fire(self) -> None:
        if self._is_stopping:
            return
        now_ns = self._clock_ns()
        self._lead_ns += (min(max(0, now_ns - self._alarm_ns), _MAX_LEAD_NS) - self._lead_ns) * 0.05
        for _ in range(_MAX_BURST):
            if self._next_ns > now_ns + _MAX_LEAD_NS:
                break
            while now_ns < self._next_ns:
                now_ns = self._clock_ns()
            data, item, sequence = self._source.next()
            self.dispatch(data, Call(0, item, self._next_ns, sequence))
            self._next_ns = next(self._schedule, _NEVER)
            now_ns = self._clock_ns()
        if self._timer is not None:
            self._set_timer(self._timer)

    def dispatch(self, data: bytes, call: Call) -> None:
        channel = self._pool.acquire()
        if channel is None:
            self._queue.append((data, call))
            return
        self._busy[call] = channel
        self._mark_sent(call)
        channel.send(data, call)
        call.written_ns = self._clock_ns()

    def on_ended(self, call: Call) -> None:
        self._pool.release(self._busy.pop(call))
        if self._queue and not self._is_stopping:
            self.dispatch(*self._queue.popleft())

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    @property
    def is_exhausted(self) -> bool:
        return self._next_ns == _NEVER

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        self._is_stopping = True
        if self._timer is not None:
            self._timer.close()
        await self._drain(limit_s)
        self._pool.close()
