from __future__ import annotations

import pytest

from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import (
    ConnectionFailed,
    DataReceived,
    GoAwayReceived,
    HeadersReceived,
    PingAcknowledged,
    PingReceived,
    SettingsReceived,
    SinkFilled,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.frame import PREFACE, ErrorCode
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import Http2Limits, Http2StreamError
from naiad.transport.http2.stream import (
    AFTER_RECEIVED_END,
    AFTER_SENT_END,
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    MAY_RECEIVE,
    MAY_SEND,
    OPEN,
    Stream,
)
from tests.unit.transport.http2.http2_rig import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    HELLO,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH,
    REQUEST,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    failure,
    frame,
    frames,
    goaway_code,
    only,
    request,
    sent,
    server,
    setting,
    u32,
)


def pair(limits: Http2Limits | None = None) -> tuple[Http2Connection, Http2Connection]:
    client, other = (
        Http2Connection(is_server=False, limits=limits),
        Http2Connection(is_server=True, limits=limits),
    )
    for _ in range(2):
        other.receive(sent(client))
        client.receive(sent(other))
    return client, other


class TestStates:
    """A row per entry of the tables in http2_stream.py."""

    def test_table(self) -> None:
        assert AFTER_SENT_END == {OPEN: HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE: CLOSED}
        assert AFTER_RECEIVED_END == {OPEN: HALF_CLOSED_REMOTE, HALF_CLOSED_LOCAL: CLOSED}
        assert {OPEN, HALF_CLOSED_LOCAL} == MAY_RECEIVE
        assert {OPEN, HALF_CLOSED_REMOTE} == MAY_SEND

    def test_a_call_closes_when_both_sides_have_ended(self) -> None:
        client, other = pair()
        stream = client.open_stream(REQUEST)
        assert stream.state == OPEN
        (opened,) = other.receive(sent(client))
        assert isinstance(opened, HeadersReceived)
        client.sender.data(stream, [b"question"], 8, end_stream=True)
        assert stream.state == HALF_CLOSED_LOCAL
        (data,) = other.receive(sent(client))
        assert isinstance(data, DataReceived)
        assert data.end_stream
        assert opened.stream.state == HALF_CLOSED_REMOTE
        other.sender.response(opened.stream, RESPONSE, [b"ans", b"wer"], 6, TRAILERS)
        assert opened.stream.state == CLOSED
        events = client.receive(sent(other))
        assert [type(event) for event in events] == [
            HeadersReceived,
            DataReceived,
            TrailersReceived,
        ]
        assert stream.state == CLOSED
        assert not client.streams
        assert not other.streams

    def answered_early(self) -> tuple[Http2Connection, Stream]:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.sender.headers(opened.stream, TRAILERS, end_stream=True)
        assert [f[:3] for f in frames(sent(connection))] == [(HEADERS, END_HEADERS | END_STREAM, 1)]
        assert opened.stream.state == HALF_CLOSED_LOCAL
        return connection, opened.stream

    def test_answered_before_the_end_of_the_request(self) -> None:
        """Many clients send the end as a frame of its own."""
        connection, stream = self.answered_early()
        connection.receive(frame(DATA, END_STREAM, 1))
        assert stream.state == CLOSED
        assert connection.sender.num_finished == 1
        assert sent(connection) == b""

    def test_more_of_an_answered_request_is_not_wanted(self) -> None:
        connection, stream = self.answered_early()
        connection.receive(frame(DATA, 0, 1, b"more"))
        assert frames(sent(connection)) == [(RST, 0, 1, u32(0))]
        assert stream.state == CLOSED
        assert connection.receive(frame(DATA, 0, 1, b"late")) == []

    def test_an_answered_request_that_never_ends_is_reset(self) -> None:
        connection, _ = self.answered_early()
        connection.sender.reset_responded()
        assert frames(sent(connection)) == [(RST, 0, 1, u32(0))]
        assert not connection.streams

    def test_reset_by_the_peer(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1)))
        (ended,) = connection.receive(frame(RST, 0, 1, u32(8)))
        assert ended == StreamEnded(opened.stream, 8, is_remote=True)
        assert opened.stream.state == CLOSED
        assert not connection.streams

    def test_data_after_the_end_resets_the_stream(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=True)))
        (ended,) = connection.receive(frame(DATA, 0, 1, b"more"))
        assert ended == StreamEnded(opened.stream, ErrorCode.STREAM_CLOSED, is_remote=False)

    def test_headers_after_the_end_reset_the_stream(self) -> None:
        connection = server()
        connection.receive(request(1, end=True))
        (ended,) = connection.receive(request(1, end=True))
        assert isinstance(ended, StreamEnded)
        assert ended.code == ErrorCode.STREAM_CLOSED

    def test_headers_that_crossed_our_reset_are_ignored(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.sender.reset(opened.stream, ErrorCode.CANCEL)
        assert connection.receive(request(1)) == []

    def test_trailers_must_end_the_stream(self) -> None:
        connection = server()
        connection.receive(request(1, end=False))
        (ended,) = connection.receive(frame(HEADERS, END_HEADERS, 1, TRAILERS))
        assert isinstance(ended, StreamEnded)
        assert ended.code == ErrorCode.PROTOCOL_ERROR

    def test_trailers_of_a_request(self) -> None:
        connection = server()
        connection.receive(request(1, end=False))
        (trailers,) = connection.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS))
        assert isinstance(trailers, TrailersReceived)
        assert trailers.head == [(b"grpc-status", b"0")]


class TestGreeting:
    def test_the_server_announces_its_limits(self) -> None:
        connection = Http2Connection(
            is_server=True,
            limits=Http2Limits(max_concurrent_streams=7, stream_window_bytes=100_000),
        )
        settings, window = frames(sent(connection))
        assert settings[0] == SETTINGS
        assert setting(3, 7) in settings[3]
        assert setting(4, 100_000) in settings[3]
        assert window == (WINDOW, 0, 0, u32(64 * 1024 * 1024 - 65535))

    def test_the_client_sends_the_preface_and_refuses_pushes(self) -> None:
        data = sent(Http2Connection(is_server=False))
        assert data.startswith(PREFACE)
        assert setting(2, 0) in frames(data[len(PREFACE) :])[0][3]

    def test_settings_are_acknowledged(self) -> None:
        connection = Http2Connection(is_server=True)
        sent(connection)
        assert connection.receive(HELLO) == [SettingsReceived()]
        assert frames(sent(connection)) == [(SETTINGS, ACK, 0, b"")]

    @pytest.mark.parametrize(
        "data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16\x03\x01"]
    )
    def test_other_protocols_are_refused_at_the_first_wrong_byte(self, data: bytes) -> None:
        connection = Http2Connection(is_server=True)
        assert failure(connection.receive(data)).reason.startswith("not HTTP/2")

    def test_the_first_frame_must_be_settings(self) -> None:
        connection = Http2Connection(is_server=True)
        assert failure(connection.receive(PREFACE + request(1))).code == ErrorCode.PROTOCOL_ERROR
        connection = Http2Connection(is_server=True)
        assert (
            failure(connection.receive(PREFACE + frame(SETTINGS, ACK, 0))).code
            == ErrorCode.PROTOCOL_ERROR
        )


class TestParts:
    """What arrives in one read must not matter."""

    STREAM = (
        HELLO
        + request(1, end=False)
        + frame(DATA, 0, 1, b"a" * 100)
        + frame(PING, 0, 0, b"01234567")
        + frame(DATA, PADDED, 1, b"\x05" + b"b" * 300 + b"\0" * 5)
        + frame(0x55, 0, 1, b"unknown frames are skipped")
        + frame(DATA, END_STREAM, 1, b"c" * 70)
        + frame(HEADERS, 0, 3, REQUEST[:7])
        + frame(CONTINUATION, 0, 3, REQUEST[7:9])
        + frame(CONTINUATION, END_HEADERS, 3, REQUEST[9:])
        + frame(
            HEADERS,
            END_HEADERS | END_STREAM | PADDED | PRIORITY_FLAG,
            5,
            b"\x03" + b"\0\0\0\0\x10" + REQUEST + b"\0\0\0",
        )
        + frame(PRIORITY, 0, 7, b"\0\0\0\1\0")
        + frame(GOAWAY, 0, 0, u32(0) + u32(2) + b"why")
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 8, 9, 10, 13, 64, 1000, 10_000])
    def test_any_split_gives_the_same(self, size: int) -> None:
        connection = Http2Connection(is_server=True)
        events = [
            e
            for at in range(0, len(self.STREAM), size)
            for e in connection.receive(self.STREAM[at : at + size])
        ]
        data = b"".join(bytes(e.data) for e in events if isinstance(e, DataReceived))
        assert data == b"a" * 100 + b"b" * 300 + b"c" * 70
        assert [e.end_stream for e in events if isinstance(e, DataReceived)][-1]
        heads = [e for e in events if isinstance(e, HeadersReceived)]
        assert [(e.stream.id, e.end_stream) for e in heads] == [(1, False), (3, False), (5, True)]
        assert heads[0].head == heads[1].head == heads[2].head
        assert [e for e in events if isinstance(e, PingReceived)] == [PingReceived()]
        assert events[-1] == GoAwayReceived(0, 2, b"why")
        assert (PING, ACK, 0, b"01234567") in frames(sent(connection))

    def test_equal_blocks_share_their_head(self) -> None:
        connection = server()
        first, second = connection.receive(request(1) + request(3))
        assert isinstance(first, HeadersReceived)
        assert isinstance(second, HeadersReceived)
        assert first.head is second.head

    def test_an_empty_last_frame_is_told(self) -> None:
        connection = server()
        connection.receive(request(1, end=False))
        data = only(DataReceived, connection.receive(frame(DATA, END_STREAM, 1)))
        assert data == DataReceived(data.stream, b"", True)

    def test_small_data_is_copied_large_data_is_a_view(self) -> None:
        connection = server()
        connection.receive(request(1, end=False))
        small, large = connection.receive(
            frame(DATA, 0, 1, b"x" * 10) + frame(DATA, 0, 1, b"x" * 10_000)
        )
        assert isinstance(small, DataReceived)
        assert isinstance(large, DataReceived)
        assert isinstance(small.data, bytes)
        assert isinstance(large.data, memoryview)

    def test_a_head_that_is_refused_resets_only_its_stream(self) -> None:
        def make_head(headers: list[tuple[bytes, bytes]]) -> object:
            if (b":path", b"/bad") in headers:
                raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "bad path")
            return headers

        connection = server(make_head=make_head)
        assert connection.receive(request(1, block=encode_headers([(b":path", b"/bad")]))) == []
        assert frames(sent(connection)) == [(RST, 0, 1, u32(1))]
        (good,) = connection.receive(request(3))
        assert isinstance(good, HeadersReceived)


class TestSink:
    """Large frames go straight into the consumer's memory."""

    def test_the_rest_of_a_frame(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        payload = bytes(range(256)) * 400
        whole = frame(DATA, END_STREAM, 1, payload)
        assert connection.receive_buffer() is None
        first = only(DataReceived, connection.receive(whole[:1009]))
        memory = bytearray(len(payload) + 50)
        view = memoryview(memory)
        view[: len(first.data)] = first.data
        filled = len(first.data)
        rest = whole[1009:]
        while rest:
            opened.stream.sink = view[filled:]
            buffer = connection.receive_buffer()
            if buffer is None:
                for event in connection.receive(rest[:5000]):
                    assert isinstance(event, DataReceived)
                    view[filled : filled + len(event.data)] = event.data
                    filled += len(event.data)
                rest = rest[5000:]
                continue
            part = rest[: min(20_000, len(buffer))]
            buffer[: len(part)] = part
            (event,) = connection.received_into_buffer(len(part))
            assert event == SinkFilled(opened.stream, len(part), False)
            filled += len(part)
            rest = rest[len(part) :]
        assert bytes(view[:filled]) == payload
        assert opened.stream.state == HALF_CLOSED_REMOTE

    def test_never_beyond_the_frame_nor_into_its_padding(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        payload = b"\x20" + b"x" * 50_000 + b"\0" * 32
        connection.receive(frame(DATA, PADDED, 1, payload)[:20])
        opened.stream.sink = memoryview(bytearray(1 << 20))
        buffer = connection.receive_buffer()
        assert buffer is not None
        assert len(buffer) == 50_000 - 10
        connection.received_into_buffer(50_000 - 10)
        assert connection.receive_buffer() is None
        assert connection.receive(b"\0" * 32 + frame(PING, 0, 0, b"01234567")) == [PingReceived()]

    def test_not_for_a_stream_that_is_gone(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.receive(frame(DATA, END_STREAM, 1, b"x" * 50_000)[:20])
        opened.stream.sink = memoryview(bytearray(1 << 20))
        connection.sender.reset(opened.stream, ErrorCode.CANCEL)
        assert connection.receive_buffer() is None
        assert connection.receive(b"x" * (50_000 - 11)) == []
        assert connection.receive(request(3))


class TestReceiveWindows:
    LIMITS = Http2Limits(stream_window_bytes=100_000, connection_window_bytes=10_000_000)

    def test_windows_are_given_back_in_halves(self) -> None:
        connection = server(self.LIMITS)
        connection.receive(request(1, end=False))
        connection.receive(frame(DATA, 0, 1, b"x" * 49_999))
        assert sent(connection) == b""
        connection.receive(frame(DATA, 0, 1, b"x"))
        assert frames(sent(connection)) == [(WINDOW, 0, 1, u32(50_000))]

    def test_padding_is_given_back_too(self) -> None:
        connection = server(self.LIMITS)
        connection.receive(request(1, end=False))
        connection.receive(frame(DATA, PADDED, 1, b"\xf0" + b"x" * 49_759 + b"\0" * 240))
        assert frames(sent(connection)) == [(WINDOW, 0, 1, u32(50_000))]

    def test_too_much_on_a_stream_resets_it(self) -> None:
        connection = server(self.LIMITS)
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.pause(opened.stream)
        events = connection.receive(frame(DATA, 0, 1, b"x" * 100_000) + frame(DATA, 0, 1, b"x"))
        assert events[-1] == StreamEnded(
            opened.stream, ErrorCode.FLOW_CONTROL_ERROR, is_remote=False
        )

    def test_a_paused_stream_gets_its_window_when_it_goes_on(self) -> None:
        connection = server(self.LIMITS)
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.pause(opened.stream)
        connection.receive(frame(DATA, 0, 1, b"x" * 90_000))
        assert sent(connection) == b""
        connection.resume(opened.stream)
        assert frames(sent(connection)) == [(WINDOW, 0, 1, u32(90_000))]

    def test_too_much_on_the_connection_ends_it(self) -> None:
        connection = server(
            Http2Limits(stream_window_bytes=1 << 20, connection_window_bytes=65_535)
        )
        connection.receive(request(1, end=False))
        assert (
            failure(connection.receive(frame(DATA, 0, 1, b"x" * 65_536))).code
            == ErrorCode.FLOW_CONTROL_ERROR
        )

    def test_data_for_a_stream_that_we_reset_still_counts(self) -> None:
        connection = server(self.LIMITS)
        opened = only(HeadersReceived, connection.receive(request(1, end=False)))
        connection.sender.reset(opened.stream, ErrorCode.CANCEL)
        sent(connection)
        for _ in range(50):
            connection.receive(frame(DATA, 0, 1, b"x" * 100_000))
        assert frames(sent(connection)) == [(WINDOW, 0, 0, u32(5_000_000))]

    def test_windows_below_the_default_cannot_be_kept(self) -> None:
        with pytest.raises(ValueError, match="65535"):
            Http2Limits(stream_window_bytes=1000)


BROKEN = {
    "DATA on stream 0": (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA on an idle stream": (frame(DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
    "DATA with too much padding": (
        request(1, end=False) + frame(DATA, PADDED, 1, b"\x05abcd"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "padded DATA without a length": (
        request(1, end=False) + frame(DATA, PADDED, 1),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS on stream 0": (request(0), ErrorCode.PROTOCOL_ERROR),
    "even stream id": (request(2), ErrorCode.PROTOCOL_ERROR),
    "decreasing stream id": (request(5) + request(3), ErrorCode.STREAM_CLOSED),
    "HEADERS with too much padding": (
        frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + REQUEST),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS interrupted": (
        frame(HEADERS, 0, 1, REQUEST) + frame(PING, 0, 0, b"01234567"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "HEADERS interrupted by DATA": (
        frame(HEADERS, 0, 1, REQUEST) + frame(DATA, 0, 1, b"x"),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "CONTINUATION of another stream": (
        frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 4, 3, b""),
        ErrorCode.PROTOCOL_ERROR,
    ),
    "CONTINUATION alone": (frame(CONTINUATION, END_HEADERS, 1, REQUEST), ErrorCode.PROTOCOL_ERROR),
    "bad HPACK": (request(1, block=b"\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
    "PUSH_PROMISE": (frame(PUSH, 4, 1, u32(2) + REQUEST), ErrorCode.PROTOCOL_ERROR),
    "short PRIORITY": (frame(PRIORITY, 0, 1, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, b"\0\0\0\0\0"), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frame(RST, 0, 0, u32(0)), ErrorCode.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frame(RST, 0, 9, u32(0)), ErrorCode.PROTOCOL_ERROR),
    "long RST_STREAM": (request(1) + frame(RST, 0, 1, b"\0\0\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
    "odd SETTINGS": (frame(SETTINGS, 0, 0, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
    "SETTINGS ack with content": (
        frame(SETTINGS, ACK, 0, setting(1, 1)),
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "huge initial window": (
        frame(SETTINGS, 0, 0, setting(4, 1 << 31)),
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "tiny frame size": (frame(SETTINGS, 0, 0, setting(5, 100)), ErrorCode.PROTOCOL_ERROR),
    "huge frame size": (frame(SETTINGS, 0, 0, setting(5, 1 << 24)), ErrorCode.PROTOCOL_ERROR),
    "odd ENABLE_PUSH": (frame(SETTINGS, 0, 0, setting(2, 2)), ErrorCode.PROTOCOL_ERROR),
    "short PING": (frame(PING, 0, 0, b"0"), ErrorCode.FRAME_SIZE_ERROR),
    "PING on a stream": (frame(PING, 0, 1, b"01234567"), ErrorCode.PROTOCOL_ERROR),
    "short GOAWAY": (frame(GOAWAY, 0, 0, u32(0)), ErrorCode.FRAME_SIZE_ERROR),
    "long GOAWAY": (frame(GOAWAY, 0, 0, b"\0" * 5000), ErrorCode.FRAME_SIZE_ERROR),
    "short WINDOW_UPDATE": (frame(WINDOW, 0, 0, b"\0"), ErrorCode.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of 0": (frame(WINDOW, 0, 0, u32(0)), ErrorCode.PROTOCOL_ERROR),
    "WINDOW_UPDATE on an idle stream": (frame(WINDOW, 0, 9, u32(1)), ErrorCode.PROTOCOL_ERROR),
    "window overflow": (frame(WINDOW, 0, 0, u32((1 << 31) - 1)), ErrorCode.FLOW_CONTROL_ERROR),
    "frame larger than announced": (
        (5 << 20).to_bytes(3, "big") + b"\x55\0\0\0\0\0",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "DATA larger than announced": (
        request(1, end=False) + (5 << 20).to_bytes(3, "big") + b"\0\0\0\0\0\1",
        ErrorCode.FRAME_SIZE_ERROR,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_connections_end_with_a_reason(name: str) -> None:
    data, code = BROKEN[name]
    connection = server()
    events = connection.receive(data)
    assert failure(events).code == code
    assert failure(events).reason
    assert connection.is_closed
    assert goaway_code(connection) is code
    assert connection.receive(request(11)) == []
    assert sum(connection.counters.failures.values()) == 1


@pytest.mark.parametrize("name", BROKEN)
def test_broken_byte_by_byte(name: str) -> None:
    data, code = BROKEN[name]
    connection = server()
    events = [event for byte in data for event in connection.receive(bytes((byte,)))]
    assert failure(events).code == code


class TestStreamErrors:
    def test_window_update_of_zero_resets_the_stream(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1)))
        (ended,) = connection.receive(frame(WINDOW, 0, 1, u32(0)))
        assert ended == StreamEnded(opened.stream, ErrorCode.PROTOCOL_ERROR, is_remote=False)

    def test_window_overflow_resets_the_stream(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1)))
        (ended,) = connection.receive(frame(WINDOW, 0, 1, u32((1 << 31) - 1)))
        assert ended == StreamEnded(opened.stream, ErrorCode.FLOW_CONTROL_ERROR, is_remote=False)

    def test_frames_on_closed_streams_are_harmless(self) -> None:
        connection = server()
        opened = only(HeadersReceived, connection.receive(request(1)))
        connection.sender.headers(opened.stream, TRAILERS, end_stream=True)
        assert (
            connection.receive(
                frame(WINDOW, 0, 1, u32(5))
                + frame(RST, 0, 1, u32(0))
                + frame(PRIORITY, 0, 1, b"\0" * 5)
            )
            == []
        )

    def test_more_streams_than_announced_are_refused(self) -> None:
        connection = server(Http2Limits(max_concurrent_streams=2))
        events = connection.receive(request(1) + request(3) + request(5))
        assert len(events) == 2
        assert frames(sent(connection)) == [(RST, 0, 5, u32(ErrorCode.REFUSED_STREAM))]
        assert connection.counters.streams_refused_total == 1

    def test_streams_after_our_goaway_are_refused(self) -> None:
        connection = server()
        connection.receive(request(1))
        connection.goaway(1)
        sent(connection)
        assert connection.receive(request(3)) == []
        assert frames(sent(connection)) == [(RST, 0, 3, u32(ErrorCode.REFUSED_STREAM))]


class TestClient:
    def test_headers_of_the_server_on_a_stream_that_was_never_opened(self) -> None:
        client, _ = pair()
        assert (
            failure(client.receive(frame(HEADERS, END_HEADERS, 1, RESPONSE))).code
            == ErrorCode.PROTOCOL_ERROR
        )

    def test_a_server_may_not_enable_push(self) -> None:
        client, _ = pair()
        assert (
            failure(client.receive(frame(SETTINGS, 0, 0, setting(2, 1)))).code
            == ErrorCode.PROTOCOL_ERROR
        )

    def test_peer_limits_are_kept(self) -> None:
        client, _ = pair(Http2Limits(max_concurrent_streams=5))
        assert client.peer_max_concurrent_streams == 5

    def test_ping_and_its_answer(self) -> None:
        client, other = pair()
        client.ping(b"12345678")
        assert other.receive(sent(client)) == [PingReceived()]
        assert client.receive(sent(other)) == [PingAcknowledged(b"12345678")]

    def test_stream_ids_grow(self) -> None:
        client, other = pair()
        assert [client.open_stream(REQUEST, end_stream=True).id for _ in range(3)] == [1, 3, 5]
        assert len(other.receive(sent(client))) == 3
        assert other.last_peer_stream_id == 5

    def test_the_end_of_a_failed_connection_is_told_once(self) -> None:
        client, _ = pair()
        events = client.receive(frame(PING, 0, 1, b"01234567"))
        assert [type(event) for event in events] == [ConnectionFailed]
        assert client.receive(b"anything") == []
