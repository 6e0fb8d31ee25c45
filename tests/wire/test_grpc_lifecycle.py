"""The life of a gRPC connection: greeting, time-outs, keepalive, age, draining, shutdown; and
attacks at this level."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.http2.frame import MAX_STREAM_ID, ErrorCode
from naiad.transport.http2.limits import Http2Limits
from tests.wire.grpc_rig import Rig, framed

ECHO, HELD = "/t.T/Echo", "/t.T/Held"


class Handlers:
    def __init__(self) -> None:
        self.held: list[Call] = []
        self.cancelled = 0
        self.methods = [Method(ECHO, unary=self.echo), Method(HELD, unary=self.hold)]

    def echo(self, call: Call, message: Buffer) -> None:
        call.reply([message], len(message))

    def hold(self, call: Call, message: Buffer) -> None:
        self.held.append(call)
        call.on_cancel = self.cancel

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def build(handlers: Handlers, **options: Any) -> Rig:
    return Rig(GrpcOptions(**options), handlers.methods)


class TestGreeting:
    async def test_an_http1_request_gets_an_http1_response(self, handlers: Handlers) -> None:
        rig = build(handlers)
        rig.connect()
        other = build(handlers)
        other.transport.written.clear()
        protocol = other.endpoint.protocol_factory()
        other.transport.protocol = other.protocol = protocol
        protocol.connection_made(other.transport)
        other.transport.written.clear()
        other.feed(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert bytes(other.transport.written).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b"gRPC" in other.transport.written
        assert other.transport.is_closed

    async def test_a_connection_that_asks_for_nothing_is_closed(self, handlers: Handlers) -> None:
        rig = build(handlers, first_request_timeout_s=10)
        rig.tick(9)
        assert not rig.transport.is_closed
        rig.tick(2)
        assert rig.transport.is_closed
        assert rig.endpoint.counters.failures == {"first_request_timeout": 1}

    async def test_a_connection_with_one_request_stays_open(self, handlers: Handlers) -> None:
        rig = build(handlers, first_request_timeout_s=10)
        await rig.unary(ECHO, b"x")
        for _ in range(100):
            rig.tick(60)
        assert not rig.transport.is_closed
        await rig.close()

    async def test_too_many_connections(self, handlers: Handlers) -> None:
        rig = build(handlers, max_connections=2)
        first = rig.transport
        rig.connect()
        rig.connect()
        assert rig.transport.is_closed
        assert rig.goaways[0].code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.goaways[0].debug == b"too many connections"
        assert rig.endpoint.counters.connections_refused_total == 1
        assert not first.is_closed
        first.close()
        await asyncio.sleep(0)
        rig.connect()
        assert (await rig.unary(ECHO, b"x")).status == 0


class TestKeepalive:
    async def test_a_dead_client_is_found(self, handlers: Handlers) -> None:
        rig = build(handlers, keepalive_time_ms=10_000, keepalive_timeout_ms=5_000)
        await rig.unary(HELD, b"x")
        for _ in range(13):
            rig.tick(1)
        assert not rig.transport.is_closed
        for _ in range(5):
            rig.tick(1)
        assert rig.transport.is_closed
        assert handlers.cancelled == 1
        assert rig.endpoint.counters.failures == {"keepalive_timeout": 1}

    async def test_a_client_that_answers_pings_stays(self, handlers: Handlers) -> None:
        rig = build(handlers, keepalive_time_ms=10_000, keepalive_timeout_ms=5_000)
        await rig.unary(HELD, b"x")
        for _ in range(100):
            rig.tick(1)
            rig.exchange()
        assert not rig.transport.is_closed
        await rig.close()

    async def test_a_client_that_pings_too_often_is_disconnected(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.unary(HELD, b"x")
        for _ in range(5):
            rig.client.ping(b"01234567")
            rig.exchange()
        assert rig.goaways[-1].code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.goaways[-1].debug == b"too_many_pings"
        assert rig.transport.is_closed
        assert handlers.cancelled == 1
        assert rig.endpoint.counters.failures == {"too_many_pings": 1}


class TestDrain:
    async def test_calls_in_flight_finish_and_the_connection_closes(
        self, handlers: Handlers
    ) -> None:
        rig = build(handlers)
        call = await rig.unary(HELD, b"x")
        rig.protocol.drain()
        await rig.settle()
        assert [goaway.last_stream_id for goaway in rig.goaways] == [MAX_STREAM_ID, 1]
        assert not rig.transport.is_closed
        handlers.held[0].reply([b"done"], 4)
        await rig.settle()
        assert call.messages == [(0, b"done")]
        assert rig.transport.is_closed

    async def test_a_call_that_crossed_the_goaway_is_served(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.unary(HELD, b"x")
        rig.protocol.drain()
        await asyncio.sleep(0)
        call = await rig.unary(ECHO, b"on its way")
        assert call.messages == [(0, b"on its way")]
        handlers.held[0].reply([b""], 0)
        await rig.settle()
        assert rig.transport.is_closed

    async def test_later_calls_are_refused(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.unary(HELD, b"x")
        rig.protocol.drain()
        await rig.settle()
        call = await rig.unary(ECHO, b"too late")
        assert call.reset_code == ErrorCode.REFUSED_STREAM

    async def test_a_drain_does_not_wait_for_a_client_that_ignores_the_ping(
        self, handlers: Handlers
    ) -> None:
        rig = build(handlers)
        await rig.unary(ECHO, b"x")
        rig.protocol.drain()
        await asyncio.sleep(0)
        rig.tick(0.5)
        assert not rig.transport.is_closed
        rig.tick(1)
        assert rig.transport.is_closed

    async def test_a_client_that_stops_sending_still_gets_its_responses(
        self, handlers: Handlers
    ) -> None:
        rig = build(handlers)
        call = await rig.unary(HELD, b"x")
        assert rig.protocol.eof_received()
        handlers.held[0].reply([b"done"], 4)
        await rig.settle()
        assert call.messages == [(0, b"done")]

    async def test_a_connection_without_calls_closes_at_eof(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.unary(ECHO, b"x")
        assert not rig.protocol.eof_received()

    async def test_an_old_connection_drains_and_closes(self, handlers: Handlers) -> None:
        rig = build(handlers, max_connection_age_ms=60_000, max_connection_age_grace_ms=10_000)
        await rig.unary(HELD, b"x")
        rig.tick(59)
        rig.exchange()
        assert not rig.goaways
        rig.tick(2)
        await rig.settle()
        assert len(rig.goaways) == 2
        rig.tick(9)
        assert not rig.transport.is_closed
        rig.tick(2)
        await rig.settle()
        assert rig.transport.is_closed
        assert handlers.cancelled == 1
        assert rig.endpoint.counters.failures == {"max_age": 1}


class TestStop:
    async def test_stop_waits_for_calls(self, handlers: Handlers) -> None:
        rig = build(handlers)
        call = await rig.unary(HELD, b"x")
        stopping = asyncio.create_task(rig.endpoint.stop(60))
        await rig.settle()
        assert not stopping.done()
        handlers.held[0].reply([b"done"], 4)
        await rig.settle()
        await stopping
        assert call.status == 0
        assert not rig.endpoint.connections

    async def test_stop_fails_calls_when_the_grace_is_over(self, handlers: Handlers) -> None:
        rig = build(handlers)
        call = await rig.unary(HELD, b"x")
        await rig.endpoint.stop(0.001)
        rig.from_server()
        assert (call.status, call.message) == (14, "the server is shutting down")
        assert handlers.cancelled == 1
        assert not rig.endpoint.connections

    async def test_a_stopping_endpoint_accepts_no_connections(self, handlers: Handlers) -> None:
        rig = build(handlers)
        stopping = asyncio.create_task(rig.endpoint.stop(60))
        await rig.settle()
        await stopping
        rig.connect()
        assert rig.transport.is_closed
        assert rig.goaways[0].debug == b"the server is shutting down"

    async def test_stop_without_connections_returns_at_once(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.close()
        await rig.endpoint.stop(60)


class TestStalls:
    async def test_a_message_that_never_ends(self, handlers: Handlers) -> None:
        rig = build(handlers, receive_stall_timeout_s=10)
        call = rig.open(ECHO)
        rig.client.sender.data(call.stream, [framed(b"x" * 1000)[:500]], 500)
        await rig.settle()
        for _ in range(11):
            rig.tick(1)
            rig.exchange()
        assert (call.status, call.message) == (None, "")
        rig.tick(1)
        rig.exchange()
        assert (call.status, call.message) == (4, "the rest of the request did not arrive in time")
        assert rig.endpoint.counters.failures == {"receive_stall": 1}
        await rig.close()

    async def test_the_server_waits_for_a_slow_message(self, handlers: Handlers) -> None:
        rig = build(handlers, receive_stall_timeout_s=10)
        call = rig.open(ECHO)
        data = framed(b"x" * 100)
        for at in range(0, len(data), 5):
            rig.client.sender.data(call.stream, [data[at : at + 5]], 5)
            rig.exchange()
            for _ in range(5):
                rig.tick(1)
        rig.half_close(call)
        await rig.settle()
        assert call.status == 0
        await rig.close()

    async def test_a_client_that_reads_nothing(self, handlers: Handlers) -> None:
        rig = build(handlers, send_stall_timeout_s=10)
        await rig.unary(ECHO, b"x")
        rig.transport.unsent_bytes = 1000
        for _ in range(12):
            rig.tick(1)
        assert rig.transport.is_aborted
        assert rig.endpoint.counters.failures == {"send_stall": 1}

    async def test_a_client_that_reads_slowly(self, handlers: Handlers) -> None:
        rig = build(handlers, send_stall_timeout_s=10)
        await rig.unary(ECHO, b"x")
        for left in range(1000, 0, -1):
            rig.transport.unsent_bytes = left
            rig.tick(1)
        assert not rig.transport.is_closed
        await rig.close()

    async def test_a_window_that_never_opens(self, handlers: Handlers) -> None:
        rig = build(handlers, send_stall_timeout_s=10)
        call = await rig.unary(HELD, b"x")
        (stream,) = rig.protocol.connection.streams.values()
        stream.send_window = 0
        handlers.held[0].reply([b"y" * 100], 100)
        await rig.settle()
        for _ in range(12):
            rig.tick(1)
            rig.exchange()
        assert call.status is None
        assert rig.transport.is_aborted

    async def test_a_close_that_cannot_be_finished(self, handlers: Handlers) -> None:
        rig = build(handlers)
        closed: list[bool] = []
        rig.transport.close = lambda: closed.append(True)  # type: ignore[method-assign]
        rig.protocol.close()
        for _ in range(6):
            rig.clock.advance(1_000_000_000)
            rig.protocol.deadlines.tick(rig.clock.now_ns())
        assert rig.transport.is_aborted


class TestMemory:
    async def test_incomplete_requests_are_bounded_over_all_connections(
        self, handlers: Handlers
    ) -> None:
        rig = build(handlers, max_buffered_request_bytes=250_000)
        refused = []
        connections = []
        for _ in range(4):
            rig.connect()
            connections.append((rig.transport, rig.protocol))
            call = rig.open(ECHO)
            rig.client.sender.data(call.stream, [framed(b"x" * 1_000_000)[:60_000]], 60_000)
            await rig.settle()
            rig.client.sender.data(call.stream, [b"x" * 30_000], 30_000)
            await rig.settle()
            refused.append(call.status)
        assert refused == [None, None, 8, 8]
        assert rig.endpoint.budget.refused_total == 2
        for transport, _ in connections:
            transport.close()
        await asyncio.sleep(0)
        assert rig.endpoint.budget.used_bytes == 0

    async def test_the_length_of_a_message_reserves_no_memory(self, handlers: Handlers) -> None:
        rig = build(handlers, http2=Http2Limits(max_concurrent_streams=100))
        for _ in range(100):
            call = rig.open(ECHO)
            rig.client.sender.data(call.stream, [b"\0\x7f\xff\xff\xff"], 5)
        await rig.settle()
        assert rig.endpoint.budget.used_bytes == 0
        assert len(rig.protocol.connection.streams) == 100
        await rig.close()

    async def test_rapid_reset_ends_the_connection_and_every_call(self, handlers: Handlers) -> None:
        rig = build(handlers, http2=Http2Limits(reset_burst=10, resets_per_s=1))
        for _ in range(30):
            call = rig.open(HELD)
            rig.send(call, b"x", end=True)
            rig.to_server()
            rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
            rig.to_server()
        rig.from_server()
        assert rig.goaways[0].code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.transport.is_closed
        assert handlers.cancelled == len(handlers.held) == 11
        assert rig.endpoint.counters.failures == {"rapid_reset": 1}
