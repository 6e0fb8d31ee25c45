"""Answers of many connections leave together, in order; a connection that is served alone is not
kept waiting."""

from __future__ import annotations

from tests.unit.transport.http1.http1_rig import Rig, answer, request


async def test_a_connection_that_is_served_alone_writes_at_once() -> None:
    rig = Rig()
    rig.feed(request())
    rig.exchanges.pop().respond(200, b"", b"0")
    await rig.turn()
    rig.transport.take()
    rig.feed(request())
    rig.exchanges.pop().respond(200, b"", b"1")
    assert rig.transport.written == answer(b"1")


async def test_answers_of_several_connections_wait_for_the_end_of_the_turn() -> None:
    rig = Rig()
    others = [rig.connect() for _ in range(3)]
    for connection, _ in others:
        rig.feed(request(), connection)
    for number, exchange in enumerate(rig.exchanges):
        exchange.respond(200, b"", b"%d" % number)
    assert [transport.written for _, transport in others] == [b"", b"", b""]
    await rig.turn()
    assert [transport.written for _, transport in others] == [
        answer(b"0"),
        answer(b"1"),
        answer(b"2"),
    ]


async def test_no_more_than_sixteen_are_kept_waiting() -> None:
    rig = Rig()
    others = [rig.connect() for _ in range(20)]
    for connection, _ in others:
        rig.feed(request(), connection)
    for exchange in rig.exchanges:
        exchange.respond(200, b"", b"x")
    assert sum(bool(transport.written) for _, transport in others) == 16
    await rig.turn()
    assert all(transport.written == answer(b"x") for _, transport in others)


async def test_much_is_not_kept_until_the_end_of_the_turn() -> None:
    rig = Rig()
    rig.feed(request())
    (exchange,) = rig.exchanges
    exchange.start_stream(200, b"")
    for _ in range(3):
        exchange.send_chunk(b"x" * 30_000)
    assert len(rig.transport.written) > 90_000
    exchange.end_stream()
    assert (await rig.written()).endswith(b"0\r\n\r\n")


async def test_a_connection_that_is_lost_before_the_end_of_the_turn() -> None:
    rig = Rig()
    other, transport = rig.connect()
    rig.feed(request(), other)
    rig.exchanges[0].respond(200, b"", b"x")
    rig.lose(other)
    await rig.turn()
    assert transport.written == b""
