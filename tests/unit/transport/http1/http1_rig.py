"""An HTTP/1.1 endpoint without sockets: feeds bytes to a connection, collects what it writes,
advances its clock by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from naiad.transport.http1.endpoint import Http1Endpoint
from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.head import Head
from naiad.transport.http1.limits import Http1Limits
from naiad.transport.http1.route import Route
from naiad.transport.turn import Turn
from tests.fakes import FakeClock, FakeTransport


class Rig:
    """Must be made on a running loop. Requests are kept in `exchanges`; `handle` may answer them at
    once."""

    def __init__(
        self, limits: Http1Limits | None = None, handle: Callable[[Exchange], None] | None = None
    ) -> None:
        self.clock = FakeClock()
        self.exchanges: list[Exchange] = []
        self.route = Route(handle or self.exchanges.append)
        self.endpoint = Http1Endpoint(self._route, limits or Http1Limits(), self._now_s)
        self.endpoint.turn = Turn(lambda: 1.0)  # a turn that never ends
        self.connection, self.transport = self.connect()

    def _now_s(self) -> float:
        return self.clock.now_ns() / 1e9

    def _route(self, head: Head) -> Route:
        return self.route

    def connect(self) -> tuple[Any, FakeTransport]:
        connection, transport = self.endpoint.protocol_factory(), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    def feed(self, data: bytes, connection: Any = None) -> None:
        """As the event loop does: into the buffer that the connection gives, as much as fits at a
        time."""
        connection = connection or self.connection
        while data:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            connection.buffer_updated(size)
            data = data[size:]

    async def turn(self) -> None:
        """Lets the event loop do what was put off to the end of the turn."""
        await asyncio.sleep(0)

    async def written(self) -> bytes:
        await self.turn()
        return self.transport.take()

    def advance(self, seconds: float) -> None:
        self.clock.advance_s(seconds)
        self.endpoint.sweep()

    def lose(self, connection: Any = None) -> None:
        (connection or self.connection).connection_lost(None)


def request(path: str = "/x", body: bytes = b"", method: str = "POST", headers: str = "") -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: h\r\n{headers}"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def echo(exchange: Exchange) -> None:
    exchange.respond(200, b"", bytes(exchange.body))
