"""A pool of channels for an open loop.

The channel released last is reused first. While all channels are busy, new ones are made up to a
limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.perf.channels.call import ClientChannel

MAX_CHANNELS = 1024


class ChannelPool:
    def __init__(
        self, make_channel: Callable[[], ClientChannel], max_channels: int = MAX_CHANNELS
    ) -> None:
        self._make_channel = make_channel
        self._max_channels = max_channels
        self._idle: list[ClientChannel] = []
        self._all: list[ClientChannel] = []

    async def warm(self, count: int) -> None:
        """Opens this many channels, so that connecting is not measured. Raises ConnectError."""
        added = [
            self._make_channel() for _ in range(min(count, self._max_channels) - len(self._all))
        ]
        await asyncio.gather(*(channel.open() for channel in added))
        self._all += added
        self._idle += added

    def acquire(self) -> ClientChannel | None:
        if self._idle:
            return self._idle.pop()
        if len(self._all) >= self._max_channels:
            return None
        channel = self._make_channel()
        self._all.append(channel)
        return channel

    def release(self, channel: ClientChannel) -> None:
        self._idle.append(channel)

    def close(self) -> None:
        for channel in self._all:
            channel.close()
