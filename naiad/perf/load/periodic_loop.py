"""--periodic-concurrency-range: a burst that grows while earlier requests are still being answered,
for streaming models.

`start` requests go out; whenever one of the newest has had `period` responses, or has ended, `step`
more follow, until there were `end` in all. Each request is sent once. There are no windows: the
profile export has every response's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from naiad.perf.channels.call import Call, Channel, Listener
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
        make_channel: Callable[[Listener], Channel],
        source: Source,
        steps: PeriodicSteps,
        **options: Any,
    ) -> None:
        super().__init__(recorder, **options)
        self._make_channel = make_channel
        self._source = source
        self._steps = steps
        self._channels: list[Channel] = []
        self._newest_slot = -1
        """First slot of the last group: only its requests call for more."""

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
            self._departing(call)
            self._channels[slot].send(data, call)
            call.written_ns = self._clock_ns()

    def on_response(self, call: Call, payload: Any, now_ns: int) -> None:
        super().on_response(call, payload, now_ns)
        if call.response_ns is not None and len(call.response_ns) == self._steps.period:
            self._grow(call)

    def ended(self, call: Call) -> None:
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
        await self.drained(limit_s)
        for channel in self._channels:
            channel.close()
