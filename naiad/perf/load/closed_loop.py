"""A load with a fixed concurrency: each response triggers the next request.

Each slot has its own channel and source, so that the requests of a sequence stay in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from naiad.perf.channels.call import Call, ClientChannel, Listener
from naiad.perf.load.level import Level
from naiad.perf.load.load import RETRY_S, STOP_LIMIT_S, Load, Share
from naiad.perf.load.request_source import Source
from naiad.perf.measure.recorder import Recorder


class ClosedLoop(Load):
    def __init__(
        self,
        recorder: Recorder,
        make_channel: Callable[[Listener], ClientChannel],
        make_source: Callable[[], Source],
        **options: Any,
    ) -> None:
        super().__init__(recorder, **options)
        self._make_channel = make_channel
        self._make_source = make_source
        self._channels: list[ClientChannel] = []
        self._sources: list[Source] = []
        self._is_busy: list[bool] = []
        self._concurrency = 0
        self._num_left = -1
        """Number of requests that may still be sent; -1 for no limit."""

    async def apply(self, level: Level, share: Share) -> None:
        """Sets the concurrency. Opens new channels first, so that connecting is not measured."""
        concurrency = level.share(share.number, share.num_shares)
        self._num_left = share.num_requests
        added = [self._make_channel(self) for _ in range(concurrency - len(self._channels))]
        await asyncio.gather(*(channel.open() for channel in added))
        self._channels += added
        self._sources += [self._make_source() for _ in added]
        self._is_busy += [False for _ in added]
        self._concurrency = concurrency
        for slot in range(concurrency):
            if not self._is_busy[slot]:
                self._send(slot)

    def _send(self, slot: int) -> None:
        if self._num_left == 0:
            self._is_busy[slot] = False
            return
        self._num_left -= self._num_left > 0
        data, item, sequence = self._sources[slot].next()
        call = Call(slot, item, 0, sequence)
        self._is_busy[slot] = True
        self.num_in_flight += 1
        self.num_sent += 1
        self._idle.clear()
        call.intended_ns = call.sent_ns = self._clock_ns()
        self._channels[slot].send(data, call)
        call.written_ns = self._clock_ns()

    def on_ended(self, call: Call) -> None:
        slot = call.slot
        if self._is_stopping:
            if call.is_lost or not self._sources[slot].finish():
                self._is_busy[slot] = False
                return
        elif slot >= self._concurrency:
            self._is_busy[slot] = False
            return
        if call.is_lost:
            self._is_busy[slot] = False
            asyncio.get_running_loop().call_later(RETRY_S, self._retry, slot)
        else:
            self._send(slot)

    def _retry(self, slot: int) -> None:
        if not self._is_stopping and slot < self._concurrency and not self._is_busy[slot]:
            self._send(slot)

    @property
    def is_exhausted(self) -> bool:
        return self._num_left == 0

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Ends open sequences, waits for requests in flight and closes the channels."""
        self._is_stopping = True
        self._num_left = -1
        for slot, source in enumerate(self._sources):
            if not self._is_busy[slot] and not self.broken.is_set() and source.finish():
                self._send(slot)
        await self._drain(limit_s)
        for channel in self._channels:
            channel.close()
