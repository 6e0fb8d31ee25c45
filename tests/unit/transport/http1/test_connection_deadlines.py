"""Deadlines, limits on connections, and the end of an endpoint, with a clock that is advanced by
hand."""

from __future__ import annotations

import asyncio

import pytest

from naiad.transport.http1.exchange import Exchange
from naiad.transport.http1.limits import Http1Limits
from tests.unit.transport.http1.http1_rig import Rig, answer, echo, request

LIMITS = Http1Limits(
    receive_timeout_s=60,
    min_receive_bytes_per_s=1000,
    keep_alive_timeout_s=300,
    write_timeout_s=30,
    linger_timeout_s=5,
    max_connections=2,
)


@pytest.mark.parametrize(
    "begun",
    [
        b"G",
        b"GET / HTTP/1.1\r\nX: y\r\n",
        request(body=b"abc")[:-1],
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1",
    ],
)
async def test_a_request_must_arrive_in_time(begun: bytes) -> None:
    rig = Rig(LIMITS)
    rig.feed(begun)
    rig.advance(59)
    assert await rig.written() == b""
    rig.advance(2)
    assert (await rig.written()).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert rig.transport.has_eof


async def test_slow_loris_gets_no_more_time_for_each_byte() -> None:
    rig = Rig(LIMITS)
    for octet in b"GET / HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaa":
        rig.feed(bytes([octet]))
        rig.advance(2)
    assert (await rig.written()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("drip", [b"\r\n", b"\r\n\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("has_request", [False, True])
async def test_empty_lines_do_not_keep_a_connection_open(drip: bytes, has_request: bool) -> None:
    rig = Rig(LIMITS, echo)
    if has_request:
        rig.feed(request(body=b"x"))
    for _ in range(7):
        rig.feed(drip)
        rig.advance(9)
        if rig.transport.is_closed:
            break
    rig.advance(9)
    await rig.turn()
    assert rig.transport.is_closed
    assert b"408" not in rig.transport.written


async def test_an_empty_line_after_a_body_is_not_a_request() -> None:
    """Some old clients send one. Their response may take longer than a request may."""
    rig = Rig(LIMITS)
    rig.feed(request(body=b"x") + b"\r\n")
    rig.advance(100)
    rig.exchanges[0].respond(200, b"", b"late")
    assert await rig.written() == answer(b"late")
    rig.advance(100)
    rig.feed(request(body=b"y"))
    rig.exchanges[1].respond(200, b"", b"next")
    assert await rig.written() == answer(b"next")


async def test_a_connection_without_a_request_is_closed() -> None:
    rig = Rig(LIMITS)
    rig.advance(59)
    assert not rig.transport.is_closed
    rig.advance(2)
    assert rig.transport.is_closed
    assert await rig.written() == b""


async def test_a_client_that_does_not_read_must_still_send_its_request_in_time() -> None:
    rig = Rig(LIMITS)
    rig.feed(request(body=b"1") + b"POST / HT")
    for unsent_bytes in range(1000, 930, -1):
        rig.transport.unsent_bytes = unsent_bytes
        rig.advance(1)
    rig.transport.unsent_bytes = 0
    rig.exchanges[0].respond(200, b"", b"one")
    assert (await rig.written()).startswith(answer(b"one") + b"HTTP/1.1 408 ")


async def test_a_slow_body_is_cut_too() -> None:
    rig = Rig(LIMITS)
    rig.feed(b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(12):
        rig.feed(b"x" * 10)
        rig.advance(6)
    assert (await rig.written()).startswith(b"HTTP/1.1 408 ")


async def test_a_long_upload_at_a_decent_rate_passes() -> None:
    rig = Rig(LIMITS)
    rig.feed(b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n")
    for _ in range(200):
        rig.feed(b"x" * 1000)
        rig.advance(1)
    assert len(rig.exchanges) == 1


async def test_the_deadline_of_a_pipelined_request_is_its_own() -> None:
    rig = Rig(LIMITS)
    rig.feed(request(body=b"1") + b"GET /")
    rig.advance(61)
    rig.exchanges[0].respond(200, b"", b"one")
    written = await rig.written()
    assert written.startswith(answer(b"one") + b"HTTP/1.1 408 ")


async def test_an_answer_may_take_any_time() -> None:
    rig = Rig(LIMITS)
    rig.feed(request())
    rig.advance(100_000)
    rig.exchanges[0].respond(200, b"", b"late")
    assert await rig.written() == answer(b"late")


async def test_idle_connections_are_closed() -> None:
    rig = Rig(LIMITS)
    rig.feed(request())
    rig.advance(200)
    rig.exchanges[0].respond(200, b"")
    await rig.turn()
    rig.advance(299)
    assert not rig.transport.is_closed
    rig.advance(2)
    assert rig.transport.is_closed
    assert not rig.transport.is_aborted


async def test_a_client_that_takes_nothing_is_dropped() -> None:
    rig = Rig(LIMITS)
    rig.feed(request())
    rig.exchanges[0].start_stream(200, b"")
    gone: list[str] = []
    rig.exchanges[0].on_disconnect(lambda: gone.append("gone"))
    rig.transport.unsent_bytes = 5000
    rig.advance(1)
    for left in (4000, 3000):
        rig.transport.unsent_bytes = left
        rig.advance(29)
    assert gone == []
    rig.advance(31)
    assert gone == ["gone"]
    assert rig.transport.is_aborted


async def test_a_refused_client_is_drained_for_a_while_only() -> None:
    rig = Rig(LIMITS)
    rig.feed(b"garbage\r\n\r\n")
    rig.feed(b"x" * 100_000)
    rig.advance(4)
    assert not rig.transport.is_aborted
    rig.advance(2)
    assert rig.transport.is_aborted


async def test_the_connection_limit() -> None:
    rig = Rig(LIMITS)
    _, second = rig.connect()
    connection, third = rig.connect()
    await rig.turn()
    assert third.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Retry-After: 1\r\n" in third.written
    assert third.has_eof
    assert second.written == b""
    rig.feed(request(), connection)
    assert rig.exchanges == []
    rig.lose(connection)
    rig.lose()
    connection, _ = rig.connect()
    rig.feed(request(), connection)
    assert len(rig.exchanges) == 1


async def test_a_flood_of_connections_is_not_even_answered() -> None:
    rig = Rig(LIMITS)
    transports = [rig.connect()[1] for _ in range(1100)]
    assert transports[-1].is_aborted
    assert not transports[10].is_aborted


async def test_stop_finishes_what_is_in_work() -> None:
    rig = Rig()
    idle, idle_transport = rig.connect()
    receiving, receiving_transport = rig.connect()
    rig.feed(request(body=b"abc")[:-1], receiving)
    rig.feed(request())
    stopping = asyncio.ensure_future(rig.endpoint.stop(1000.0))
    await rig.turn()
    assert idle_transport.is_closed
    rig.lose(idle)
    rig.exchanges[0].respond(200, b"", b"one")
    assert await rig.written() == answer(b"one", headers="Connection: close\r\n")
    assert rig.transport.is_closed
    rig.lose()
    rig.feed(b"c", receiving)
    rig.exchanges[1].respond(200, b"")
    await rig.turn()
    assert receiving_transport.is_closed
    assert not stopping.done()
    rig.lose(receiving)
    await stopping


async def test_nothing_that_follows_the_last_answer_is_worked_on() -> None:
    """Its answer says that the connection ends with it: the client asks again elsewhere."""
    seen: list[bytes] = []

    def handle(exchange: Exchange) -> None:
        seen.append(bytes(exchange.body))
        echo(exchange)

    rig = Rig(handle=handle)
    rig.feed(request(body=b"one")[:-1])
    stopping = asyncio.ensure_future(rig.endpoint.stop(1000.0))
    await rig.turn()
    rig.feed(b"e" + request(body=b"two") + request(body=b"three"))
    assert await rig.written() == answer(b"one", headers="Connection: close\r\n")
    assert seen == [b"one"]
    rig.lose()
    await stopping


async def test_a_stream_that_had_begun_ends_normally_during_stop() -> None:
    rig = Rig()
    rig.feed(request())
    rig.exchanges[0].start_stream(200, b"")
    stopping = asyncio.ensure_future(rig.endpoint.stop(1000.0))
    await rig.turn()
    rig.exchanges[0].send_chunk(b"x")
    rig.exchanges[0].end_stream()
    assert (await rig.written()).endswith(b"1\r\nx\r\n0\r\n\r\n")
    assert rig.transport.is_closed
    rig.lose()
    await stopping


@pytest.mark.parametrize(
    "begun",
    [
        b"POST / HT",
        request(body=b"abc")[:-1],
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1",
    ],
)
async def test_half_a_request_does_not_hold_up_the_stop(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naiad.transport.http1.endpoint.STOP_RECEIVE_S", 0.0)
    monkeypatch.setattr("naiad.transport.http1.endpoint.STOP_CLOSE_S", 0.0)
    rig = Rig()
    rig.feed(begun)
    stopping = asyncio.ensure_future(rig.endpoint.stop(3600.0))
    while not rig.transport.is_aborted:
        await rig.turn()
    assert rig.transport.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"the server is shutting down" in rig.transport.written
    rig.lose()
    await stopping


async def test_stop_aborts_what_takes_too_long() -> None:
    rig = Rig()
    rig.feed(request())
    cancelled: list[bool] = []
    rig.exchanges[0].on_disconnect(lambda: cancelled.append(True))
    stopping = asyncio.ensure_future(rig.endpoint.stop(0.0))
    while not cancelled:
        await rig.turn()
    assert rig.transport.written.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"the server is shutting down" in rig.transport.written
    while not rig.transport.is_aborted:  # this client does not close its side
        await rig.turn()
    rig.lose()
    await stopping


async def test_new_connections_during_stop_are_refused() -> None:
    rig = Rig()
    rig.feed(request())
    stopping = asyncio.ensure_future(rig.endpoint.stop(1000.0))
    await rig.turn()
    connection, transport = rig.connect()
    await rig.turn()
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    rig.lose(connection)
    rig.lose()
    await stopping


async def test_the_sweep_ends_with_the_last_connection() -> None:
    rig = Rig()
    rig.lose()
    assert rig.endpoint.connections == set()
    assert not rig.endpoint._sweep.is_running


async def test_bytes_that_are_added_are_no_reading() -> None:
    rig = Rig(LIMITS)
    rig.feed(request(body=b"x"))
    for second in range(32):
        rig.transport.unsent_bytes = 1000 + 10 * second
        rig.advance(1)
    assert rig.transport.is_aborted
    assert rig.endpoint.faults == {"slow_reader": 1}
