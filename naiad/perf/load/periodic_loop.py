"""A load for streaming models whose burst grows, for --periodic-concurrency-range.

The load sends `start` requests. Whenever one of the newest requests has had `period` responses or
has ended, it sends `step` more, until it has sent `end` requests. There are no windows; the profile
export has the time of every response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from naiad.perf.channels.call import Call, ClientChannel, Listener
from naiad.perf.load.level import Level
from naiad.perf.load.load import STOP_LIMIT_S, Load, Share
from naiad.perf.load.request_source import Source
from naiad.perf.measure.recorder import Recorder


class PeriodicSteps(msgspec.Struct, frozen=True):
    start: int
    end: int
    step: int
    period: int


class PeriodicLoop(Load):
    def __init__(
        self,
        recorder: Recorder,
        make_channel: Callable[[Listener], ClientChannel],
        source: Source,
        steps: PeriodicSteps,
        **options: Any,
    ) -> None:
        super().__init__(recorder, **options)
        self._make_channel = make_channel
        self._source = source
        self._steps = steps
        self._channels: list[ClientChannel] = []
        self._newest_slot = -1
        """First slot of the newest group; only its requests make the burst grow."""

    async def apply(self, level: Level, share: Share) -> None:
        channel = self._make_channel(self)
        await channel.open()
        self._channels.append(channel)
        self._send_group(self._steps.start)

    def _send_group(self, count: int) -> None:
        self._newest_slot = self.num_sent
        for _ in range(min(count, self._steps.end - self.num_sent)):
            slot = self.num_sent
            if slot >= len(self._channels):
                self._channels.append(self._make_channel(self))
            data, item, sequence = self._source.next()
            call = Call(slot, item, self._clock_ns(), sequence)
            self._mark_sent(call)
            self._channels[slot].send(data, call)
            call.written_ns = self._clock_ns()

    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        super().on_response(call, payload, now_ns)
        if call.response_ns is not None and len(call.response_ns) == self._steps.period:
            self._grow(call)

    def on_ended(self, call: Call) -> None:
        if len(call.response_ns or ()) < self._steps.period:
            self._grow(call)

    def _grow(self, call: Call) -> None:
        if not self._is_stopping and call.slot >= self._newest_slot and not self.is_exhausted:
            self._send_group(self._steps.step)

    @property
    def is_exhausted(self) -> bool:
        return self.num_sent >= self._steps.end

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        self._is_stopping = True
        await self._drain(limit_s)
        for channel in self._channels:
            channel.close()
