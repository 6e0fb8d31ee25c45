"""The life of a gRPC connection: greeting, time-outs, keepalive, age, draining, shutdown; and
attacks at this level."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.keys.api_class import INFERENCE
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import Status
from naiad.transport.http2.frame import MAX_STREAM_ID, ErrorCode
from naiad.transport.http2.limits import Http2Limits
from tests.unit.transport.http2.http2_rig import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    REQUEST,
    frame,
)
from tests.wire.grpc_rig import Rig, framed

ECHO, HELD, STREAM = "/t.T/Echo", "/t.T/Held", "/t.T/Stream"


class Handlers:
    def __init__(self) -> None:
        self.held: list[Call] = []
        self.cancelled = 0
        self.streams: list[Listening] = []
        self.methods = [
            Method(ECHO, INFERENCE, unary=self.echo),
            Method(HELD, INFERENCE, unary=self.hold),
            Method(STREAM, INFERENCE, stream=self.listen),
        ]

    def echo(self, call: Call, message: Buffer) -> None:
        call.reply([message], len(message))

    def hold(self, call: Call, message: Buffer) -> None:
        self.held.append(call)
        call.on_cancel = self.cancel

    def cancel(self) -> None:
        self.cancelled += 1

    def listen(self, call: Call) -> Listening:
        self.streams.append(Listening(call, self))
        return self.streams[-1]


class Listening:
    """A stream that keeps what it receives."""

    def __init__(self, call: Call, handlers: Handlers) -> None:
        self.call = call
        self.handlers = handlers
        self.messages: list[Buffer] = []
        self.is_idle = True

    def on_message(self, message: Buffer) -> None:
        self.messages.append(message)

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        raise AssertionError("nothing is refused here")

    def on_half_close(self) -> None:
        self.call.finish(Status.OK)

    def on_cancel(self) -> None:
        self.handlers.cancel()

    def on_stop(self) -> None:
        if self.is_idle:
            self.call.finish(Status.UNAVAILABLE, "stopped")


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
        rig = build(handlers, request_timeout_s=10)
        rig.tick(9)
        assert not rig.transport.is_closed
        rig.tick(2)
        assert rig.transport.is_closed
        assert rig.endpoint.counters.failures == {"first_request_timeout": 1}

    async def test_a_connection_with_one_request_stays_open(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10, idle_timeout_s=0)
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
        assert rig.transport.is_closed

    async def test_an_open_stream_ends_with_its_client(self, handlers: Handlers) -> None:
        """A client that was killed leaves its streams open, and its socket says EOF."""
        rig = build(handlers)
        rig.open(STREAM)
        await rig.settle()
        assert not rig.protocol.eof_received()
        assert handlers.cancelled == 1
        assert not rig.protocol.connection.streams

    async def test_half_a_request_ends_with_its_client(self, handlers: Handlers) -> None:
        rig = build(handlers)
        whole = await rig.unary(HELD, b"x")
        half = rig.open(HELD)
        await rig.settle()
        assert rig.protocol.eof_received()
        await rig.settle()
        assert half.reset_code == ErrorCode.CANCEL
        handlers.held[0].reply([b"done"], 4)
        await rig.settle()
        assert whole.messages == [(0, b"done")]
        assert rig.transport.is_closed

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

    async def test_idle_streams_end_at_once(self, handlers: Handlers) -> None:
        rig = build(handlers)
        idle, busy = rig.open(STREAM), rig.open(STREAM)
        await rig.settle()
        handlers.streams[1].is_idle = False
        stopping = asyncio.create_task(rig.endpoint.stop(60))
        await rig.settle()
        assert (idle.status, idle.message) == (14, "stopped")
        assert busy.status is None
        assert not stopping.done()
        handlers.streams[1].call.finish(Status.OK)
        await rig.settle()
        await stopping
        assert busy.status == 0

    @pytest.mark.parametrize("begun", [b"", framed(b"x" * 100)[:50]])
    async def test_half_a_request_does_not_hold_up_the_stop(
        self, handlers: Handlers, begun: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("naiad.transport.grpc.endpoint.STOP_RECEIVE_S", 0.0)
        rig = build(handlers)
        call = rig.open(ECHO)
        if begun:
            rig.client.sender.data(call.stream, [begun], len(begun))
        await rig.settle()
        stopping = asyncio.create_task(rig.endpoint.stop(3600))
        while not rig.transport.is_closed:
            await rig.settle()
        assert (call.status, call.message) == (14, "the server is shutting down")
        await stopping

    async def test_half_a_frame_does_not_hold_up_the_stop(self, handlers: Handlers) -> None:
        rig = build(handlers)
        await rig.unary(ECHO, b"x")
        rig.feed(frame(DATA, 0, 1, b"x" * 1000)[:500])
        stopping = asyncio.create_task(rig.endpoint.stop(3600))
        await asyncio.sleep(0)
        rig.tick(2)  # the client cannot acknowledge the ping
        assert rig.transport.is_closed
        await stopping


class TestStalls:
    async def test_a_message_that_never_ends(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10)
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
        assert rig.endpoint.counters.failures == {"request_timeout": 1}
        await rig.close()

    async def test_a_message_that_drips(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10)
        call = rig.open(ECHO)
        data = framed(b"x" * 100)
        for offset in range(0, len(data), 5):
            if call.status is None:
                rig.client.sender.data(call.stream, [data[offset : offset + 5]], 5)
                rig.exchange()
                rig.tick(1)
                rig.exchange()
        assert (call.status, call.message) == (4, "the rest of the request did not arrive in time")
        assert rig.endpoint.counters.failures == {"request_timeout": 1}
        await rig.close()

    async def test_a_large_message_at_a_reasonable_rate(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10, min_receive_bytes_per_s=1000)
        call = rig.open(ECHO)
        data = framed(b"x" * 100_000)
        for offset in range(0, len(data), 1000):
            part = data[offset : offset + 1000]
            rig.client.sender.data(call.stream, [part], len(part))
            rig.exchange()
            rig.tick(1)
        rig.half_close(call)
        await rig.settle()
        assert call.status == 0
        await rig.close()

    async def test_each_message_of_a_stream_has_its_own_time(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10)
        call = rig.open(STREAM)
        data = framed(b"x" * 10)
        rig.client.sender.data(call.stream, [data[:7]], 7)
        for _ in range(50):
            rig.exchange()
            rig.tick(5)
            rig.client.sender.data(call.stream, [data[7:] + data[:7]], len(data))
        rig.client.sender.data(call.stream, [data[7:]], 8)
        await rig.settle()
        assert call.status is None
        assert len(handlers.streams[0].messages) == 51
        await rig.close()

    @pytest.mark.parametrize("path", ["/t.T/Echo", "/t.T/Held"])
    async def test_a_call_without_data(self, handlers: Handlers, path: str) -> None:
        rig = build(handlers, request_timeout_s=10)
        call = rig.open(path)
        await rig.settle()
        for _ in range(11):
            rig.tick(1)
            rig.exchange()
        assert (call.status, call.message) == (None, "")
        rig.tick(1)
        rig.exchange()
        assert (call.status, call.message) == (4, "the rest of the request did not arrive in time")
        assert not rig.transport.is_closed
        assert rig.endpoint.counters.failures == {"request_timeout": 1}
        await rig.close()

    @pytest.mark.parametrize(
        "begun",
        [
            frame(HEADERS, 0, 3, REQUEST),
            frame(HEADERS, END_HEADERS, 3, REQUEST)[:20],
            frame(PING, 0, 0, b"01234567")[:9],
            frame(DATA, 0, 1, b"x" * 1000)[:500],
            frame(0x77, 0, 0, b"x" * 1000)[:500],
            b"\0",
        ],
        ids=["headers without end", "half headers", "half ping", "data", "unknown", "one byte"],
    )
    async def test_half_a_frame(self, handlers: Handlers, begun: bytes) -> None:
        rig = build(handlers, request_timeout_s=10)
        await rig.unary(ECHO, b"x")
        rig.feed(begun)
        for _ in range(11):
            rig.tick(1)
            rig.exchange()
        assert not rig.transport.is_closed
        rig.tick(1)
        rig.from_server()
        assert rig.transport.is_closed
        assert rig.goaways[-1].debug == b"the rest of a frame did not arrive in time"
        assert rig.endpoint.counters.failures == {"frame_timeout": 1}

    async def test_header_blocks_that_drip(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10)
        await rig.unary(ECHO, b"x")
        rig.feed(frame(HEADERS, 0, 3, REQUEST))
        for _ in range(4):
            rig.tick(3)
            rig.feed(frame(CONTINUATION, 0, 3, b""))
        rig.tick(3)
        assert rig.transport.is_closed
        assert rig.endpoint.counters.failures == {"frame_timeout": 1}

    async def test_a_busy_connection_is_always_inside_some_frame(self, handlers: Handlers) -> None:
        rig = build(handlers, request_timeout_s=10, http2=Http2Limits(max_frame_bytes=20_000))
        call = rig.open(STREAM)
        await rig.settle()
        stream_id = call.stream.id
        data = frame(DATA, 0, stream_id, framed(b"x" * 10_000))
        rig.feed(data[:5000])
        for _ in range(200):
            rig.tick(1)
            rig.feed(data[5000:] + data[:5000])
        rig.from_server()
        assert not rig.transport.is_closed
        assert len(handlers.streams[0].messages) == 200
        await rig.close()

    async def test_an_idle_connection_is_drained(self, handlers: Handlers) -> None:
        rig = build(handlers, idle_timeout_s=30)
        await rig.unary(ECHO, b"x")
        rig.tick(1)
        rig.tick(30)
        assert not rig.goaways
        rig.tick(2)
        await rig.settle()
        assert [goaway.code for goaway in rig.goaways] == [ErrorCode.NO_ERROR] * 2
        assert rig.transport.is_closed
        assert rig.endpoint.counters.failures == {"idle_timeout": 1}

    async def test_calls_keep_a_connection_from_being_idle(self, handlers: Handlers) -> None:
        rig = build(handlers, idle_timeout_s=30)
        held = await rig.unary(HELD, b"x")
        for _ in range(10):
            rig.tick(20)
        handlers.held[0].reply([b""], 0)
        await rig.settle()
        assert held.status == 0
        for _ in range(10):
            rig.tick(20)
            await rig.unary(ECHO, b"x")
        assert not rig.goaways
        await rig.close()

    async def test_an_idle_stream(self, handlers: Handlers) -> None:
        rig = build(handlers, stream_idle_timeout_s=100)
        call = rig.open(STREAM)
        await rig.settle()
        for _ in range(5):
            rig.tick(60)
            rig.send(call, b"x")
            await rig.settle()
        handlers.streams[0].is_idle = False
        rig.tick(1)
        rig.tick(1000)
        await rig.settle()
        assert (call.status, call.message) == (None, "")
        handlers.streams[0].is_idle = True
        rig.tick(1)
        rig.tick(101)
        await rig.settle()
        assert (call.status, call.message) == (4, "the stream was idle for 100 s")
        assert rig.endpoint.counters.failures == {"stream_idle_timeout": 1}
        await rig.close()

    async def test_a_client_that_reads_nothing(self, handlers: Handlers) -> None:
        rig = build(handlers, write_timeout_s=10)
        await rig.unary(ECHO, b"x")
        rig.transport.unsent_bytes = 1000
        for _ in range(12):
            rig.tick(1)
        assert rig.transport.is_aborted
        assert rig.endpoint.counters.failures == {"write_timeout": 1}

    async def test_a_client_that_reads_slowly(self, handlers: Handlers) -> None:
        rig = build(handlers, write_timeout_s=10)
        await rig.unary(ECHO, b"x")
        for left in range(1000, 0, -1):
            rig.transport.unsent_bytes = left
            rig.tick(1)
        assert not rig.transport.is_closed
        await rig.close()

    async def test_bytes_that_are_added_are_no_reading(self, handlers: Handlers) -> None:
        rig = build(handlers, write_timeout_s=10)
        await rig.unary(ECHO, b"x")
        for added in range(12):
            rig.transport.unsent_bytes = 1000 + added
            rig.protocol.sender.activity += 1
            rig.tick(1)
        assert rig.transport.is_aborted
        assert rig.endpoint.counters.failures == {"write_timeout": 1}

    async def test_a_window_that_never_opens(self, handlers: Handlers) -> None:
        rig = build(handlers, write_timeout_s=10)
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
        rig = Rig(GrpcOptions(), handlers.methods, limit_bytes=350_000)
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
        assert rig.endpoint.budget.num_refused == 2
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
        rig.protocol.account.settle()
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

    async def test_calls_of_unknown_methods_are_metered_like_resets(
        self, handlers: Handlers
    ) -> None:
        """They end normally, and still bring nothing forward."""
        rig = build(handlers, http2=Http2Limits(reset_burst=10, resets_per_s=1))
        for _ in range(30):
            rig.open("/t.T/Nothing", end=True)
            rig.to_server()
        rig.from_server()
        assert rig.goaways[0].code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.endpoint.counters.failures == {"rapid_reset": 1}

    async def test_some_calls_of_unknown_methods_harm_nothing(self, handlers: Handlers) -> None:
        rig = build(handlers, http2=Http2Limits(reset_burst=10, resets_per_s=1))
        for _ in range(9):
            call = rig.open("/t.T/Nothing", end=True)
            await rig.settle()
            assert call.status == 12
        for _ in range(30):
            assert (await rig.unary(ECHO, b"x")).status == 0
        assert rig.goaways == []
        await rig.close()

    async def test_provoked_ends_are_metered_like_resets(self, handlers: Handlers) -> None:
        """Each stream has work in flight when a malformed message makes the server end it."""
        rig = build(handlers, http2=Http2Limits(reset_burst=10, resets_per_s=1))
        for _ in range(30):
            call = rig.open(STREAM)
            rig.send(call, b"work")
            rig.client.sender.data(call.stream, [b"\x07garbage"], 8)
            rig.to_server()
        rig.from_server()
        assert rig.goaways[0].code == ErrorCode.ENHANCE_YOUR_CALM
        assert rig.transport.is_closed
        assert handlers.cancelled == len(handlers.streams) == 11
        assert rig.endpoint.counters.failures == {"rapid_reset": 1}
