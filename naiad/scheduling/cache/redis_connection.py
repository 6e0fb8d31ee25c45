"""One connection to Redis, on the event loop. Commands are pipelined, and replies come in the same
order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from naiad.scheduling.cache.redis_protocol import RedisError, Reply, ReplyReader, encode_command


class RedisConnection(asyncio.Protocol):
    """When the connection ends, every command without a reply gets a RedisError, and then `on_lost`
    is called, once."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost
        self._reader = ReplyReader()
        self._waiting: deque[Callable[[Reply], None]] = deque()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def send(self, on_reply: Callable[[Reply], None], *parts: bytes) -> None:
        assert self.transport is not None
        self._waiting.append(on_reply)
        self.transport.write(encode_command(*parts))

    def ask(self, *parts: bytes) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.send(lambda reply: None if future.done() else future.set_result(reply), *parts)
        return future

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._reader.feed(data):
                if not self._waiting:
                    raise ValueError("a reply that nobody asked for")
                self._waiting.popleft()(reply)
        except ValueError as error:
            self.close(f"it sent {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error is not None else "it closed the connection")

    def close(self, reason: str) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        on_lost, self._on_lost = self._on_lost, lambda reason: None
        waiting, self._waiting = self._waiting, deque()
        for on_reply in waiting:
            on_reply(RedisError(reason))
        on_lost(reason)

    @property
    def num_waiting_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0
