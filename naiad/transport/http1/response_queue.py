"""The responses of one HTTP/1.1 connection, written in the order of its requests.

In:  parts of responses from exchanges, in any order between exchanges. Out: writes to the
     transport; parts that become ready together are joined.
Rule: only this file writes responses to the socket. The first exchange in the queue writes through,
      the others wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from naiad.core.memory_budget import MemoryAccount
from naiad.core.tensor import Buffer
from naiad.transport.http1.flush import FlushScheduler

if TYPE_CHECKING:
    from naiad.transport.http1.exchange import Exchange
    from naiad.transport.http1.fast_path import FastPath

_FLUSH_BYTES = 64 * 1024
"""Output of this size is written at once, not at the end of the event loop iteration."""
_PAUSE_BYTES = 64 * 1024
"""A stream that is not first in the queue is paused when it has buffered this much."""


class ResponseQueueOwner(Protocol):
    def on_idle(self) -> None:
        """All requests so far have been responded to."""

    def on_last_response(self) -> None:
        """A response that ends the connection has been written."""

    def on_slow_reader(self) -> None:
        """A stream's unsent bytes exceed the limit."""

    def on_given_back(self, exchange: Exchange) -> None:
        """Another process serves this request, which was the last one in the queue."""


class ResponseQueue:
    __slots__ = (
        "_flush_is_due",
        "_max_stream_buffer_bytes",
        "_out",
        "_out_bytes",
        "_owner",
        "_scheduler",
        "_transport",
        "_unsent_bytes",
        "account",
        "exchanges",
        "fast_path",
        "is_corked",
        "is_paused",
        "is_stopping",
    )

    def __init__(
        self,
        owner: ResponseQueueOwner,
        transport: asyncio.Transport,
        scheduler: FlushScheduler,
        max_stream_buffer_bytes: int,
        account: MemoryAccount,
    ) -> None:
        self.account = account
        self._unsent_bytes = 0
        """Bytes in the transport's buffer, as they were last counted."""
        self._owner = owner
        self._transport: asyncio.Transport | None = transport
        self._scheduler = scheduler
        self._max_stream_buffer_bytes = max_stream_buffer_bytes
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_is_due = False
        self.exchanges: deque[Exchange] = deque()
        self.fast_path: FastPath | None = None
        """Tried first with the next request of the connection."""
        self.is_corked = False
        """More requests of the same read follow; their responses may still join this write."""
        self.is_paused = False
        """The transport's write buffer is full."""
        self.is_stopping = False
        """The server is shutting down: every response ends its connection."""

    @property
    def peer(self) -> asyncio.BaseTransport | None:
        """The client's side of the connection."""
        return self._transport

    def send(self, exchange: Exchange, data: bytes) -> None:
        """`data` is a part of the exchange's response, and the last part when
        `exchange.is_ended`."""
        exchanges = self.exchanges
        if exchanges[0] is not exchange:
            self._wait(exchange, [data], len(data))
            return
        if self._out or self.is_corked or len(exchanges) > 1 or not self._scheduler.is_alone(self):
            self._out.append(data)
            self._out_bytes += len(data)
            if self._out_bytes > _FLUSH_BYTES:
                self.flush()
            else:
                self._flush_soon()
        elif self._transport is not None:
            self._transport.write(data)
        if exchange.is_ended:
            self._end(exchange)
        elif self.is_paused:
            self._check_stream_buffer(0)

    def send_whole(self, exchange: Exchange, data: bytes) -> None:
        """`data` is a small response as a whole. Equal to `send`, but made for speed when the
        exchange is the only one."""
        exchanges = self.exchanges
        if len(exchanges) > 1 or self._out or self.is_corked:
            self.send(exchange, data)
            return
        if not self._scheduler.is_alone(self):
            self._out.append(data)
            self._out_bytes = len(data)
            if not self._flush_is_due:
                self._flush_is_due = True
                self._scheduler.add(self)
        elif self._transport is not None:
            self._transport.write(data)
        exchanges.clear()
        exchange.detach()
        self._owner.on_idle()

    def send_parts(self, exchange: Exchange, parts: list[Buffer], size: int) -> None:
        """`parts` are a whole response; they are not copied together. The caller has checked that
        the account has room for their `size`."""
        if self.exchanges[0] is not exchange:
            self.account.add(size)
            exchange.held_bytes += size
            self._wait(exchange, parts, 0)
            return
        self._out.extend(parts)
        self.flush()
        self.count_unsent()
        self._end(exchange)

    def count_unsent(self) -> None:
        """Counts what the transport has accepted and the client has not read."""
        transport = self._transport
        unsent_bytes = 0 if transport is None else transport.get_write_buffer_size()
        if unsent_bytes != self._unsent_bytes:
            self.account.add(unsent_bytes - self._unsent_bytes)
            self._unsent_bytes = unsent_bytes

    def flush(self) -> None:
        self._flush_is_due = False
        self._out_bytes = 0
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        if len(out) == 1:
            self._transport.write(out[0])
        else:
            self._transport.writelines(out)

    def set_paused(self, *, is_paused: bool) -> None:
        """The transport's write buffer has become full, or has room again."""
        self.is_paused = is_paused
        self.count_unsent()
        if self.exchanges:
            self.exchanges[0].set_flow(is_paused=is_paused)

    def disconnect(self) -> None:
        """The client is gone: the work of every exchange is cancelled."""
        while self.exchanges:
            self.exchanges.popleft().disconnect()

    def give_back(self, exchange: Exchange) -> bool:
        """Removes an exchange to which nothing has been responded. Returns False if it is not the
        last one."""
        if not self.exchanges or self.exchanges[-1] is not exchange:
            return False
        self.exchanges.pop()
        exchange.detach()
        self._owner.on_given_back(exchange)
        return True

    def close(self) -> None:
        self._transport = None
        self._scheduler.forget(self)
        self._out.clear()
        self.fast_path = None
        self.disconnect()
        self.count_unsent()

    def _wait(self, exchange: Exchange, parts: list[Buffer], stream_bytes: int) -> None:
        if exchange.waiting is None:
            exchange.waiting = []
        exchange.waiting.extend(parts)
        if not exchange.is_ended:
            exchange.waiting_bytes += stream_bytes
            if exchange.waiting_bytes > _PAUSE_BYTES:
                exchange.set_flow(is_paused=True)
            self._check_stream_buffer(exchange.waiting_bytes)

    def _check_stream_buffer(self, waiting_bytes: int) -> None:
        if (
            self._transport is not None
            and self._transport.get_write_buffer_size() + waiting_bytes
            > self._max_stream_buffer_bytes
        ):
            self._owner.on_slow_reader()

    def _end(self, exchange: Exchange) -> None:
        """The first exchange has ended: those after it may write."""
        exchanges = self.exchanges
        while True:
            exchanges.popleft()
            exchange.detach()
            if exchange.should_close:
                self.flush()
                self._owner.on_last_response()
                return
            if not exchanges:
                self._owner.on_idle()
                return
            exchange = exchanges[0]
            if exchange.waiting is not None:
                self._out.extend(exchange.waiting)
                exchange.waiting = None
                self._flush_soon()
            if not exchange.is_ended:
                exchange.set_flow(is_paused=self.is_paused)
                return

    def _flush_soon(self) -> None:
        """Responses that become ready in one event loop iteration leave in one write."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._scheduler.add(self)
