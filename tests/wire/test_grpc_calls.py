"""gRPC calls over the fake transport: framing, metadata, compression, deadlines, cancellation,
misuse."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from naiad.errors import NaiadError
from naiad.keys.api_class import INFERENCE
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import Buffer
from naiad.transport.grpc.method import Method
from naiad.transport.grpc.options import GrpcOptions
from naiad.transport.grpc.status import GrpcError, Status
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.limits import Http2Limits
from tests.wire.grpc_rig import Rig, framed

ECHO, HELD, BROKEN, REFUSING, COUNT = (
    "/t.T/Echo",
    "/t.T/Held",
    "/t.T/Broken",
    "/t.T/Refusing",
    "/t.T/Count",
)


class Handlers:
    def __init__(self) -> None:
        self.held: list[Call] = []
        self.cancelled: list[Call] = []
        self.received: list[bytes] = []

    def echo(self, call: Call, message: Buffer) -> None:
        self.received.append(bytes(message))
        call.reply([message], len(message))

    def hold(self, call: Call, message: Buffer) -> None:
        self.held.append(call)
        call.on_cancel = lambda: self.cancelled.append(call)

    def broken(self, call: Call, message: Buffer) -> None:
        raise ZeroDivisionError("a bug with a secret path /etc/x")

    def refuse(self, call: Call, message: Buffer) -> None:
        raise GrpcError(Status.FAILED_PRECONDITION, "not today")

    def count(self, call: Call) -> Counting:
        return Counting(call, self)


class Counting:
    """A stream that sends the length of each message."""

    def __init__(self, call: Call, handlers: Handlers) -> None:
        self.call = call
        self.handlers = handlers

    def on_message(self, message: Buffer) -> None:
        if bytes(message) == b"bug":
            raise ZeroDivisionError
        data = b"%d" % len(message)
        self.call.send([data], len(data))

    def on_refusal(self, message: Buffer, error: NaiadError) -> None:
        raise AssertionError("nothing is refused here")

    def on_half_close(self) -> None:
        self.call.finish(Status.OK)

    def on_cancel(self) -> None:
        self.handlers.cancelled.append(self.call)

    def on_stop(self) -> None:
        self.call.finish(Status.UNAVAILABLE)

    @property
    def is_idle(self) -> bool:
        return True


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


def methods(handlers: Handlers) -> list[Method]:
    return [
        Method(ECHO, INFERENCE, unary=handlers.echo, is_compressed=True),
        Method(HELD, INFERENCE, unary=handlers.hold),
        Method(BROKEN, INFERENCE, unary=handlers.broken),
        Method(REFUSING, INFERENCE, unary=handlers.refuse),
        Method(COUNT, INFERENCE, stream=handlers.count, is_compressed=True),
    ]


@pytest.fixture
async def rig(handlers: Handlers) -> AsyncIterator[Rig]:
    rig = Rig(methods=methods(handlers))
    yield rig
    await rig.close()


class TestUnary:
    @pytest.mark.parametrize("size", [0, 1, 100, 20_000, 70_000, 3_000_000])
    async def test_a_message_comes_back(self, rig: Rig, size: int) -> None:
        message = bytes(i % 253 for i in range(size))
        call = await rig.unary(ECHO, message)
        assert call.messages == [(0, message)]
        assert call.status == 0
        assert call.headers == {":status": "200", "content-type": "application/grpc"}
        assert call.trailers == {"grpc-status": "0"}

    async def test_responses_to_many_calls_share_one_write(self, rig: Rig) -> None:
        calls = [rig.open(ECHO) for _ in range(20)]
        for i, call in enumerate(calls):
            rig.send(call, b"%d" % i, end=True)
        before = rig.transport.num_writes
        await rig.settle()
        assert [call.messages for call in calls] == [[(0, b"%d" % i)] for i in range(20)]
        assert rig.transport.num_writes == before + 1

    async def test_responses_of_one_turn_share_one_write(
        self, rig: Rig, handlers: Handlers
    ) -> None:
        calls = [await rig.unary(HELD, b"x") for _ in range(10)]
        before = rig.transport.num_writes
        for held in handlers.held:
            held.reply([b"now"], 3)
        await rig.settle()
        assert [call.messages for call in calls] == [[(0, b"now")]] * 10
        assert rig.transport.num_writes == before + 1

    async def test_a_message_in_any_pieces(self, rig: Rig, handlers: Handlers) -> None:
        call = rig.open(ECHO)
        for byte in framed(b"slow"):
            rig.client.sender.data(call.stream, [bytes((byte,))], 1)
            rig.to_server()
        rig.half_close(call)
        await rig.settle()
        assert handlers.received == [b"slow"]
        assert call.messages == [(0, b"slow")]

    async def test_the_end_may_come_as_trailers(self, rig: Rig) -> None:
        call = rig.open(ECHO)
        rig.send(call, b"hello")
        rig.client.sender.headers(call.stream, b"\x00\x01x\x01y", end_stream=True)
        await rig.settle()
        assert call.messages == [(0, b"hello")]

    async def test_a_call_without_a_message(self, rig: Rig) -> None:
        call = rig.open(ECHO, end=True)
        await rig.settle()
        assert (call.status, call.message) == (13, "no message was sent to a method that takes one")

    async def test_a_call_with_two_messages(self, rig: Rig) -> None:
        call = rig.open(HELD)
        rig.send(call, b"one")
        rig.send(call, b"two", end=True)
        await rig.settle()
        assert (call.status, call.message) == (
            13,
            "more than one message was sent to a method that takes one",
        )

    async def test_a_call_that_ends_inside_a_message(self, rig: Rig) -> None:
        call = rig.open(ECHO)
        rig.client.sender.data(call.stream, [framed(b"hello")[:7]], 7, end_stream=True)
        await rig.settle()
        assert (call.status, call.message) == (13, "the request ends inside a message")

    async def test_a_message_that_is_too_large(self, handlers: Handlers) -> None:
        rig = Rig(GrpcOptions(max_message_bytes=1000), methods(handlers))
        call = await rig.unary(ECHO, b"x" * 1001)
        assert (call.status, call.message) == (
            8,
            "received message larger than max (1001 vs. 1000)",
        )
        assert (await rig.unary(ECHO, b"x" * 1000)).status == 0
        await rig.close()

    async def test_an_unknown_method(self, rig: Rig) -> None:
        call = await rig.unary("/t.T/Nothing", b"x")
        assert (call.status, call.message) == (12, "unknown method /t.T/Nothing")

    async def test_a_bug_in_a_handler_is_an_internal_error_without_details(self, rig: Rig) -> None:
        call = await rig.unary(BROKEN, b"x")
        assert (call.status, call.message) == (13, "internal error")
        assert (await rig.unary(ECHO, b"x")).status == 0

    async def test_a_handlers_error(self, rig: Rig) -> None:
        call = await rig.unary(REFUSING, b"x")
        assert (call.status, call.message) == (9, "not today")

    async def test_a_content_type_that_is_not_grpc(self, rig: Rig) -> None:
        call = await rig.unary(ECHO, b"x", {"content-type": "text/plain"})
        assert call.headers[":status"] == "415"

    async def test_malformed_headers_reset_the_stream(self, rig: Rig) -> None:
        call = await rig.unary(ECHO, b"x", {"connection": "close"})
        assert call.reset_code == ErrorCode.PROTOCOL_ERROR
        assert (await rig.unary(ECHO, b"x")).status == 0

    async def test_trailers_instead_of_headers_reset_the_stream(self, rig: Rig) -> None:
        stream = rig.client.open_stream(b"\x00\x01x\x01y", end_stream=True)
        await rig.settle()
        assert stream.id not in rig.client.streams

    async def test_a_late_response_is_harmless(self, rig: Rig, handlers: Handlers) -> None:
        call = await rig.unary(HELD, b"x")
        held = handlers.held[0]
        held.reply([b"first"], 5)
        held.reply([b"second"], 6)
        held.finish(Status.INTERNAL, "third")
        held.send([b"fourth"], 6)
        await rig.settle()
        assert call.messages == [(0, b"first")]
        assert call.status == 0


class TestStreaming:
    async def test_messages_are_handled_as_they_come(self, rig: Rig) -> None:
        call = rig.open(COUNT)
        for size in (5, 0, 100_000):
            rig.send(call, b"x" * size)
            await rig.settle()
            assert call.messages[-1] == (0, b"%d" % size)
        assert call.status is None
        rig.half_close(call)
        await rig.settle()
        assert call.status == 0

    async def test_a_stream_without_messages(self, rig: Rig) -> None:
        call = rig.open(COUNT, end=True)
        await rig.settle()
        assert (call.messages, call.status) == ([], 0)

    async def test_a_bug_ends_the_call(self, rig: Rig) -> None:
        call = rig.open(COUNT)
        rig.send(call, b"1")
        rig.send(call, b"bug")
        rig.send(call, b"3")
        await rig.settle()
        assert call.messages == [(0, b"1")]
        assert (call.status, call.message) == (13, "internal error")


class TestCancellation:
    async def test_the_client_cancels_its_call(self, rig: Rig, handlers: Handlers) -> None:
        call = await rig.unary(HELD, b"x")
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert handlers.cancelled == handlers.held
        handlers.held[0].reply([b"late"], 4)
        await rig.settle()
        assert not rig.protocol.connection.streams

    async def test_the_client_cancels_a_stream(self, rig: Rig, handlers: Handlers) -> None:
        call = rig.open(COUNT)
        await rig.settle()
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert len(handlers.cancelled) == 1

    async def test_a_lost_connection_cancels_its_calls(self, rig: Rig, handlers: Handlers) -> None:
        for _ in range(3):
            await rig.unary(HELD, b"x")
        rig.open(COUNT)
        await rig.settle()
        rig.protocol.connection_lost(ConnectionResetError())
        assert len(handlers.cancelled) == 4

    async def test_a_response_to_a_lost_connection_is_dropped(
        self, rig: Rig, handlers: Handlers
    ) -> None:
        await rig.unary(HELD, b"x")
        writes = rig.transport.num_writes
        handlers.held[0].reply([b"late"], 4)
        rig.protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert rig.transport.num_writes == writes

    async def test_a_protocol_error_cancels_the_calls(self, rig: Rig, handlers: Handlers) -> None:
        await rig.unary(HELD, b"x")
        rig.feed(b"\0\0\x04\x08\0\0\0\0\0\0\0\0\0")
        await rig.settle()
        assert handlers.cancelled == handlers.held
        assert rig.transport.is_closed
        assert rig.goaways[0].code == ErrorCode.PROTOCOL_ERROR

    async def test_a_call_that_is_opened_and_reset_in_one_read(
        self, rig: Rig, handlers: Handlers
    ) -> None:
        call = rig.open(HELD)
        rig.send(call, b"x", end=True)
        rig.client.sender.reset(call.stream, ErrorCode.CANCEL)
        await rig.settle()
        assert not handlers.held
        assert not handlers.cancelled


class TestDeadlines:
    async def test_a_call_expires(self, rig: Rig, handlers: Handlers) -> None:
        call = rig.open(HELD, {"grpc-timeout": "5m"})
        rig.send(call, b"x", end=True)
        expired = asyncio.Event()
        rig.exchange()
        handlers.held[0].on_cancel = expired.set
        assert handlers.held[0].deadline_ns == rig.clock.now_ns() + 5_000_000
        await asyncio.wait_for(expired.wait(), 60)
        await rig.settle()
        assert (call.status, call.message) == (4, "Deadline Exceeded")

    async def test_a_deadline_that_is_already_over(self, rig: Rig) -> None:
        call = await rig.unary(HELD, b"x", {"grpc-timeout": "0n"})
        for _ in range(1000):
            if call.status is not None:
                break
            await rig.settle()
        assert call.status == 4

    async def test_a_response_in_time_stops_the_timer(self, rig: Rig, handlers: Handlers) -> None:
        call = await rig.unary(HELD, b"x", {"grpc-timeout": "1H"})
        timer = handlers.held[0]._timer
        handlers.held[0].reply([b"x"], 1)
        await rig.settle()
        assert call.status == 0
        assert timer is not None
        assert timer.cancelled()

    async def test_a_call_without_a_deadline(self, rig: Rig, handlers: Handlers) -> None:
        await rig.unary(HELD, b"x")
        assert handlers.held[0].deadline_ns == 0

    async def test_a_deadline_before_the_request_is_complete(self, rig: Rig) -> None:
        call = rig.open(ECHO, {"grpc-timeout": "1m"})
        rig.client.sender.data(call.stream, [framed(b"x" * 100_000)[:50_000]], 50_000)
        rig.exchange()
        while call.status is None:
            await rig.settle()
        assert call.status == 4


class TestCompression:
    @pytest.mark.parametrize("size", [10, 5_000_000])
    async def test_compressed_requests(self, rig: Rig, size: int) -> None:
        """A thread decompresses the large ones."""
        message = bytes(i % 7 for i in range(size))
        call = rig.open(ECHO, {"grpc-encoding": "gzip"})
        rig.send(call, gzip.compress(message, 1), flag=1, end=True)
        while call.status is None:
            await rig.settle()
        assert call.messages == [(0, message)]

    async def test_compressed_messages_of_a_stream_keep_their_order(self, rig: Rig) -> None:
        call = rig.open(COUNT, {"grpc-encoding": "gzip"})
        sizes = [3_000_000, 10, 2_000_000, 5]
        for size in sizes:
            rig.send(call, gzip.compress(bytes(range(256)) * (size // 256), 1), flag=1)
            rig.send(call, b"x" * 7)
        rig.half_close(call)
        while call.status is None:
            await rig.settle()
        assert [message for _, message in call.messages] == [
            b"%d" % n for size in sizes for n in (size // 256 * 256, 7)
        ]
        assert call.status == 0

    async def test_a_message_that_unpacks_beyond_the_limit(self, rig: Rig) -> None:
        call = rig.open(ECHO, {"grpc-encoding": "gzip"})
        rig.send(call, gzip.compress(bytes(100_000_000), 1), flag=1, end=True)
        while call.status is None:
            await rig.settle()
        assert call.status == 8

    async def test_compressed_data_that_cannot_be_unpacked(self, rig: Rig) -> None:
        call = rig.open(ECHO, {"grpc-encoding": "gzip"})
        rig.send(call, b"rubbish", flag=1, end=True)
        await rig.settle()
        assert call.status == 13

    async def test_a_compressed_flag_without_an_encoding(self, rig: Rig) -> None:
        call = rig.open(ECHO)
        rig.send(call, b"x", flag=1, end=True)
        await rig.settle()
        assert (call.status, call.message) == (
            13,
            "a compressed message was sent without grpc-encoding",
        )

    async def test_an_unknown_encoding(self, rig: Rig) -> None:
        call = await rig.unary(ECHO, b"x", {"grpc-encoding": "snappy"})
        assert call.status == 12
        assert call.headers["grpc-accept-encoding"] == "identity, deflate, gzip"

    @pytest.mark.parametrize("level", ["low", "medium", "high"])
    async def test_compressed_responses(self, handlers: Handlers, level: str) -> None:
        rig = Rig(GrpcOptions(infer_response_compression_level=level), methods(handlers))
        message = bytes(300_000)
        call = rig.open(ECHO, {"grpc-accept-encoding": "identity, gzip"})
        rig.send(call, message, end=True)
        while call.status is None:
            await rig.settle()
        ((flag, data),) = call.messages
        assert flag == 1
        assert gzip.decompress(data) == message
        assert call.headers["grpc-encoding"] == "gzip"
        await rig.close()

    async def test_small_messages_and_clients_without_gzip_get_no_compression(
        self, handlers: Handlers
    ) -> None:
        rig = Rig(GrpcOptions(infer_response_compression_level="high"), methods(handlers))
        assert (await rig.unary(ECHO, bytes(1000))).messages == [(0, bytes(1000))]
        assert (await rig.unary(ECHO, bytes(10), {"grpc-accept-encoding": "gzip"})).messages == [
            (0, bytes(10))
        ]
        await rig.close()


class TestBackPressure:
    async def test_a_full_transport_gets_no_data(self, rig: Rig) -> None:
        rig.protocol.pause_writing()
        call = await rig.unary(ECHO, b"x" * 1000)
        assert call.messages == []
        rig.protocol.resume_writing()
        await rig.settle()
        assert call.messages == [(0, b"x" * 1000)]

    async def test_a_slow_reader_of_a_stream_is_cancelled(self, handlers: Handlers) -> None:
        options = GrpcOptions(http2=Http2Limits(max_stream_buffer_bytes=20_000))
        rig = Rig(options, methods(handlers), Http2Limits(stream_window_bytes=65_535))
        stream_call = rig.open(COUNT)
        await rig.settle()
        (stream,) = rig.protocol.connection.streams.values()
        stream.send_window = 0
        call: Call = stream.context
        for _ in range(50):
            call.send([b"y" * 1000], 1000)
        await rig.settle()
        assert stream_call.reset_code == ErrorCode.ENHANCE_YOUR_CALM
        assert len(handlers.cancelled) == 1
        assert rig.endpoint.counters.slow_readers_total == 1
        assert rig.protocol.sender.pending_bytes == 0
        await rig.close()

    async def test_requests_of_a_stream_can_be_paused(self, rig: Rig) -> None:
        call = rig.open(COUNT)
        await rig.settle()
        (stream,) = rig.protocol.connection.streams.values()
        stream.context.pause_requests()
        for _ in range(20):
            rig.send(call, bytes(1 << 20))
        await rig.settle()
        assert len(call.messages) == 15
        stream.context.resume_requests()
        await rig.settle()
        assert len(call.messages) == 20
