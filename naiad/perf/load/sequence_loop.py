"""A load with a request rate for sequence models.

Requests of several sequences are sent in turn, each sequence on its own channel. The requests of a
sequence must arrive in order. On a channel that carries one request at a time, and always with
--serial-sequences, a request therefore waits for the response to the previous one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from naiad.perf.channels.call import Call, ClientChannel, Listener
from naiad.perf.load.load import STOP_LIMIT_S
from naiad.perf.load.open_loop import OpenLoop
from naiad.perf.load.request_source import Outgoing, Source
from naiad.perf.measure.recorder import Recorder


class _Turns:
    """Returns one request of each sequence in turn, and stores the index of the last sequence."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = sources
        self.turn = -1

    def next(self) -> Outgoing:
        self.turn = (self.turn + 1) % len(self.sources)
        return self.sources[self.turn].next()

    def finish(self) -> bool:
        return False


class SequenceLoop(OpenLoop):
    def __init__(
        self,
        recorder: Recorder,
        make_channel: Callable[[Listener], ClientChannel],
        sources: list[Source],
        *,
        is_serial: bool,
        **options: Any,
    ) -> None:
        self._turns = _Turns(sources)
        super().__init__(recorder, make_channel, self._turns, **options)
        self._is_serial = is_serial
        self._channels = [make_channel(self) for _ in sources]
        self._queues: list[deque[tuple[bytes, Call]]] = [deque() for _ in sources]

    async def open(self) -> None:
        await asyncio.gather(*(channel.open() for channel in self._channels))

    def dispatch(self, data: bytes, call: Call) -> None:
        call.slot = self._turns.turn
        if self._queues[call.slot] or (self._is_serial and self._channels[call.slot].num_in_flight):
            self._queues[call.slot].append((data, call))
        else:
            self._send(data, call)

    def _send(self, data: bytes, call: Call) -> None:
        self._mark_sent(call)
        self._channels[call.slot].send(data, call)
        call.written_ns = self._clock_ns()

    def on_ended(self, call: Call) -> None:
        slot = call.slot
        if self._queues[slot] and not call.is_lost:
            self._send(*self._queues[slot].popleft())
        elif (
            self._is_stopping
            and not call.is_lost
            and not self._channels[slot].num_in_flight
            and self._turns.sources[slot].finish()
        ):
            self._end_sequence(slot)

    def _end_sequence(self, slot: int) -> None:
        data, item, sequence = self._turns.sources[slot].next()
        self._send(data, Call(slot, item, self._clock_ns(), sequence))

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        self._is_stopping = True
        for slot, channel in enumerate(self._channels):
            if (
                not channel.num_in_flight
                and not self.broken.is_set()
                and self._turns.sources[slot].finish()
            ):
                self._end_sequence(slot)
        await super().stop(limit_s)
        for channel in self._channels:
            channel.close()
