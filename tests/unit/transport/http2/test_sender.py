from __future__ import annotations

import pytest

from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import HeadersReceived, StreamEnded
from naiad.transport.http2.limits import Http2Limits
from naiad.transport.http2.sender import QUANTUM_BYTES, SlowReaderError
from naiad.transport.http2.stream import CLOSED, Stream
from tests.unit.transport.http2.http2_rig import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    RESPONSE,
    RST,
    SETTINGS,
    TRAILERS,
    WINDOW,
    failure,
    frame,
    frames,
    only,
    request,
    sent,
    server,
    setting,
    u32,
)

MAX = (1 << 31) - 1


def opened(connection: Http2Connection, stream_id: int = 1) -> Stream:
    return only(HeadersReceived, connection.receive(request(stream_id))).stream


def data_of(data: bytes) -> dict[int, bytes]:
    content: dict[int, bytes] = {}
    for kind, _, stream_id, payload in frames(data):
        if kind == DATA:
            content[stream_id] = content.get(stream_id, b"") + payload
    return content


def wide(connection: Http2Connection, stream_window: int = MAX, frame_size: int = 1 << 20) -> None:
    """The peer opens its windows."""
    connection.receive(
        frame(SETTINGS, 0, 0, setting(4, stream_window) + setting(5, frame_size))
        + frame(WINDOW, 0, 0, u32(MAX - 65535))
    )
    sent(connection)


class TestAnswer:
    def test_one_answer_is_three_frames(self) -> None:
        connection = server()
        connection.sender.response(opened(connection), RESPONSE, [b"he", b"llo"], 5, TRAILERS)
        assert frames(sent(connection)) == [
            (HEADERS, END_HEADERS, 1, RESPONSE),
            (DATA, 0, 1, b"hello"),
            (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS),
        ]
        assert connection.sender.num_finished == 1

    def test_buffers_are_not_copied(self) -> None:
        connection = server()
        wide(connection)
        tensor = bytearray(300_000)
        connection.sender.response(
            opened(connection), RESPONSE, [b"head", memoryview(tensor)], 300_004, TRAILERS
        )
        assert any(
            isinstance(piece, memoryview) and piece.obj is tensor
            for piece in connection.sender.pop_output()
        )

    def test_frames_fit_the_peers_frame_size(self) -> None:
        connection = server()
        wide(connection, frame_size=16384)
        connection.sender.response(
            opened(connection), RESPONSE, [b"x" * 100_000], 100_000, TRAILERS
        )
        out = frames(sent(connection))
        assert max(len(payload) for *_, payload in out) == 16384
        assert out[-1] == (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS)


class TestWindows:
    def test_data_waits_for_the_stream_window(self) -> None:
        connection = server()
        stream = opened(connection)
        connection.sender.response(stream, RESPONSE, [b"x" * 70_000], 70_000, TRAILERS)
        out = sent(connection)
        assert len(data_of(out)[1]) == 65535
        assert frames(out)[-1][0] == DATA
        connection.receive(frame(WINDOW, 0, 0, u32(100_000)))
        assert sent(connection) == b""
        connection.receive(frame(WINDOW, 0, 1, u32(4000)))
        assert len(data_of(sent(connection))[1]) == 4000
        connection.receive(frame(WINDOW, 0, 1, u32(4000)))
        out = sent(connection)
        assert len(data_of(out)[1]) == 465
        assert frames(out)[-1] == (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS)
        assert stream.state == CLOSED
        assert connection.sender.pending_bytes == 0

    def test_data_waits_for_the_connection_window(self) -> None:
        connection = server()
        connection.receive(frame(SETTINGS, 0, 0, setting(4, MAX)))
        sent(connection)
        connection.sender.response(opened(connection), RESPONSE, [b"x" * 65_000], 65_000, TRAILERS)
        connection.sender.response(opened(connection, 3), RESPONSE, [b"y" * 1000], 1000, TRAILERS)
        assert {stream: len(data) for stream, data in data_of(sent(connection)).items()} == {
            1: 65_000,
            3: 535,
        }
        connection.receive(frame(WINDOW, 0, 0, u32(10_000)))
        assert data_of(sent(connection)) == {3: b"y" * 465}

    def test_a_smaller_initial_window_may_make_windows_negative(self) -> None:
        connection = server()
        stream = opened(connection)
        connection.sender.headers(stream, RESPONSE)
        connection.sender.data(stream, [b"x" * 60_000], 60_000)
        sent(connection)
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 10_000)))
        assert stream.send_window == 10_000 - 60_000
        connection.sender.data(stream, [b"y" * 10], 10)
        connection.receive(frame(WINDOW, 0, 1, u32(50_000)))
        assert data_of(sent(connection)) == {}
        connection.receive(frame(WINDOW, 0, 1, u32(10)))
        assert data_of(sent(connection)) == {1: b"y" * 10}

    def test_a_larger_initial_window_lets_data_go(self) -> None:
        connection = server()
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 0)))
        connection.sender.response(opened(connection), RESPONSE, [b"x" * 10], 10, TRAILERS)
        assert data_of(sent(connection)) == {}
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 3)))
        assert data_of(sent(connection)) == {1: b"xxx"}
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 100)))
        out = sent(connection)
        assert data_of(out) == {1: b"x" * 7}
        assert (HEADERS, END_HEADERS | END_STREAM, 1, TRAILERS) in frames(out)

    def test_a_larger_window_is_not_used_before_it_is_acknowledged(self) -> None:
        connection = server()
        connection.receive(request(1))
        stream = connection.streams[1]
        connection.sender.headers(stream, RESPONSE)
        connection.sender.data(stream, [bytes(100_000)], 100_000)
        connection.sender.pop_output()
        connection.receive(frame(WINDOW, 0, 0, u32(1_000_000)))
        assert not connection.sender.out, "the stream's own window is used up"
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 90_000) + setting(5, 32_768)))
        kinds = [(kind, flags) for kind, flags, _, _ in frames(sent(connection))]
        assert kinds == [(SETTINGS, ACK), (DATA, 0)]
        assert stream.send_window == 0

    def test_initial_window_that_overflows_a_stream_ends_the_connection(self) -> None:
        connection = server()
        opened(connection)
        connection.receive(frame(WINDOW, 0, 1, u32(1000)))
        assert failure(
            connection.receive(frame(SETTINGS, 0, 0, setting(4, MAX)))
        ).reason.startswith("initial window")

    def test_tiny_windows_make_tiny_frames_and_nothing_else(self) -> None:
        connection = server()
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 1)))
        connection.sender.response(opened(connection), RESPONSE, [b"abc"], 3, TRAILERS)
        content = data_of(sent(connection))[1]
        for _ in range(2):
            connection.receive(frame(WINDOW, 0, 1, u32(1)))
            content += data_of(sent(connection))[1]
        assert content == b"abc"

    def test_an_empty_end_needs_no_window(self) -> None:
        client = Http2Connection(is_server=False)
        client.receive(frame(SETTINGS, 0, 0, setting(4, 0)))
        stream = client.open_stream(b"")
        sent(client)
        client.sender.data(stream, [], 0, end_stream=True)
        assert frames(sent(client)) == [(DATA, END_STREAM, 1, b"")]


class TestTurns:
    def test_large_answers_take_turns(self) -> None:
        connection = server()
        wide(connection)
        for stream_id in (1, 3):
            connection.sender.response(
                opened(connection, stream_id), RESPONSE, [b"x" * (3 << 20)], 3 << 20, TRAILERS
            )
        order = [
            (stream_id, len(payload))
            for kind, _, stream_id, payload in frames(sent(connection))
            if kind == DATA
        ]
        assert {size for _, size in order} == {QUANTUM_BYTES}
        second = [stream_id for stream_id, _ in order].index(3)
        assert [stream_id for stream_id, _ in order[second : second + 8]] == [3, 1] * 4

    def test_a_small_answer_does_not_wait_for_a_large_one(self) -> None:
        connection = server()
        wide(connection)
        connection.sender.is_paused = True
        connection.sender.response(
            opened(connection, 1), RESPONSE, [b"x" * (8 << 20)], 8 << 20, TRAILERS
        )
        connection.sender.response(opened(connection, 3), RESPONSE, [b"small"], 5, TRAILERS)
        connection.sender.is_paused = False
        connection.sender.pump()
        order = [stream_id for kind, _, stream_id, _ in frames(sent(connection)) if kind == DATA]
        assert order.index(3) == 1


class TestTransportFull:
    def test_data_waits_while_the_transport_is_full(self) -> None:
        connection = server()
        stream = opened(connection)
        connection.sender.is_paused = True
        connection.sender.response(stream, RESPONSE, [b"x" * 10], 10, TRAILERS)
        assert data_of(sent(connection)) == {}
        connection.sender.is_paused = False
        connection.sender.pump()
        assert data_of(sent(connection)) == {1: b"x" * 10}

    def test_output_is_taken_in_portions(self) -> None:
        connection = server()
        wide(connection)
        connection.sender.response(
            opened(connection), RESPONSE, [b"x" * (5 << 20)], 5 << 20, TRAILERS
        )
        first = sum(map(len, connection.sender.pop_output()))
        assert 1 << 20 <= first <= (1 << 20) + QUANTUM_BYTES + 100
        connection.sender.is_paused = True
        second = sum(map(len, connection.sender.pop_output()))
        assert second <= (1 << 20) + QUANTUM_BYTES + 100
        assert not connection.sender.out
        assert connection.sender.pending_bytes > 2 << 20


class TestSlowReaders:
    LIMITS = Http2Limits(max_stream_buffer_bytes=1000, max_connection_buffer_bytes=3000)

    def stuck(self) -> tuple[Http2Connection, Stream]:
        """A peer that gives no window at all."""
        connection = server(self.LIMITS)
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 0)))
        stream = opened(connection)
        connection.sender.headers(stream, RESPONSE)
        sent(connection)
        return connection, stream

    def test_one_message_is_always_taken(self) -> None:
        connection, stream = self.stuck()
        connection.sender.data(stream, [b"x" * 5000], 5000)
        assert connection.sender.pending_bytes == 5000

    def test_a_second_one_only_within_the_streams_limit(self) -> None:
        connection, stream = self.stuck()
        connection.sender.data(stream, [b"x" * 600], 600)
        connection.sender.data(stream, [b"x" * 400], 400)
        with pytest.raises(SlowReaderError):
            connection.sender.data(stream, [b"x"], 1)
        assert connection.sender.pending_bytes == 1000

    def test_the_connections_limit_counts_all_streams(self) -> None:
        connection, stream = self.stuck()
        connection.sender.data(stream, [b"x" * 3001], 3001)
        other = opened(connection, 3)
        connection.sender.headers(other, RESPONSE)
        with pytest.raises(SlowReaderError):
            connection.sender.data(other, [b"x"], 1)

    def test_what_a_reset_stream_had_is_dropped(self) -> None:
        connection, stream = self.stuck()
        connection.sender.data(stream, [b"x" * 500], 500)
        (ended,) = connection.receive(frame(RST, 0, 1, u32(8)))
        assert isinstance(ended, StreamEnded)
        assert connection.sender.pending_bytes == 0
        connection.receive(frame(SETTINGS, 0, 0, setting(4, 65535)))
        assert data_of(sent(connection)) == {}
