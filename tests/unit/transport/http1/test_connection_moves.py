"""Connections that another process goes on serving: they leave between two requests, and nothing is
handled twice or lost."""

from __future__ import annotations

import asyncio
from typing import Any

from naiad.transport.http1.route import Route
from tests.fakes import FakeTransport
from tests.unit.transport.http1.http1_rig import Rig, answer, request


class MovingRig(Rig):
    """Requests for /away leave; the others are kept in `exchanges`."""

    def __init__(self) -> None:
        self.moved: list[bytes] = []
        super().__init__()
        self.endpoint.move = lambda _connection, data: self.moved.append(data)
        self._away = Route(self.exchanges.append)
        self._away.leaves = lambda _connection: True

    def _route(self, head: Any) -> Route:
        return self._away if head.path == b"/away" else self.route


async def test_a_request_leaves_with_everything_that_follows_it() -> None:
    rig = MovingRig()
    data = request("/away", b"body") + request("/here") + b"POST /ha"
    rig.feed(data)
    assert rig.moved == [data]
    assert rig.transport.is_paused
    assert rig.exchanges == []
    assert await rig.written() == b""


async def test_a_request_whose_body_has_not_arrived_leaves() -> None:
    rig = MovingRig()
    data = request("/away", b"0123456789")[:-5]
    rig.feed(data)
    assert rig.moved == [data]


async def test_it_leaves_after_the_responses_before_it() -> None:
    rig = MovingRig()
    rig.feed(request("/here", b"1") + request("/here", b"2") + request("/away", b"3"))
    first, second = rig.exchanges
    second.respond(200, b"", b"second")
    assert rig.moved == []
    first.respond(200, b"", b"first")
    assert rig.moved == [request("/away", b"3")]
    assert await rig.written() == answer(b"first") + answer(b"second")


async def test_it_leaves_when_its_responses_have_been_sent() -> None:
    rig = MovingRig()
    rig.transport.unsent_bytes = 10
    rig.feed(request("/away", b"3"))
    assert rig.moved == []
    rig.transport.unsent_bytes = 0
    async with asyncio.timeout(10):
        while not rig.moved:
            await asyncio.sleep(0.001)
    assert rig.moved == [request("/away", b"3")]


async def test_a_connection_that_arrives_continues_with_what_was_received() -> None:
    rig = MovingRig()
    connection, transport = rig.endpoint.protocol_factory(), FakeTransport()
    connection.resume_after_move(request("/here", b"1") + request("/here", b"2")[:-1], 3)
    connection.connection_made(transport)
    assert connection.num_moves == 3
    (exchange,) = rig.exchanges
    assert exchange.body == b"1"
    exchange.respond(200, b"", b"first")
    rig.feed(b"2", connection)
    assert rig.exchanges[1].body == b"2"
    rig.exchanges[1].respond(200, b"", b"second")
    await rig.turn()
    assert transport.take() == answer(b"first") + answer(b"second")


async def test_connections_elsewhere_count_towards_the_limit() -> None:
    rig = MovingRig()
    rig.endpoint.num_elsewhere = lambda: rig.endpoint.limits.max_connections
    _, transport = rig.connect()
    await rig.turn()
    assert b"maximum number of connections reached" in transport.take()
