"""Known attacks on HTTP/2 servers. Each must end at a limit, with a GOAWAY that names the cause,
and be counted."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import ConnectionFailed, Event, HeadersReceived, StreamEnded
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import FloodMeter, Http2Limits
from tests.fakes import FakeClock
from tests.unit.transport.http2.http2_rig import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
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

LIMITS = Http2Limits(
    control_frame_burst=100,
    control_frames_per_s=10,
    reset_burst=20,
    resets_per_s=5,
    max_concurrent_streams=50,
)

FLOODS = {
    "ping_flood": frame(PING, 0, 0, b"01234567"),
    "settings_flood": frame(SETTINGS, 0, 0),
    "priority_flood": frame(PRIORITY, 0, 1, b"\0\0\0\0\1"),
    "data_flood": frame(DATA, 0, 1),
    "window_update_flood": frame(WINDOW, 0, 1, u32(1)),
    "unknown_flood": frame(0x77, 0, 0, b"?"),
    "rst_stream_flood": frame(RST, 0, 3, u32(0)),
    "goaway_flood": frame(7, 0, 0, u32(0) + u32(0)),
}


def under_attack() -> Http2Connection:
    connection = server(LIMITS, FakeClock())
    connection.receive(request(1, end=False))
    other = only(HeadersReceived, connection.receive(request(3)))
    connection.sender.headers(other.stream, TRAILERS, end_stream=True)
    sent(connection)
    return connection


@pytest.mark.parametrize("cause", FLOODS)
def test_floods_end_the_connection(cause: str) -> None:
    connection = under_attack()
    events = connection.receive(FLOODS[cause] * 200)
    assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM
    assert connection.counters.failures == {cause: 1}
    assert goaway_code(connection) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("cause", FLOODS)
def test_the_same_frames_at_a_human_pace_do_not(cause: str) -> None:
    clock = FakeClock()
    connection = server(LIMITS, clock)
    connection.receive(request(1, end=False))
    other = only(HeadersReceived, connection.receive(request(3)))
    connection.sender.headers(other.stream, TRAILERS, end_stream=True)
    for _ in range(300):
        clock.advance_s(0.2)
        assert not any(
            isinstance(event, ConnectionFailed) for event in connection.receive(FLOODS[cause])
        )


def test_padding_alone_is_an_empty_frame_too() -> None:
    connection = under_attack()
    assert (
        failure(connection.receive(frame(DATA, PADDED, 1, b"\x03\0\0\0") * 200)).code
        == ErrorCode.ENHANCE_YOUR_CALM
    )


def test_answered_streams_pay_for_control_frames() -> None:
    """A busy client that sends some WINDOW_UPDATEs per call is not an attacker."""
    connection = server(LIMITS, FakeClock())
    for stream_id in range(1, 2001, 2):
        opened = only(HeadersReceived, connection.receive(request(stream_id)))
        connection.sender.response(opened.stream, RESPONSE, [b"x"], 1, TRAILERS)
        assert connection.receive(frame(WINDOW, 0, 0, u32(1)) * 4) == []


def test_a_long_stream_pays_for_its_window_updates() -> None:
    """One call, many messages: grpcio acknowledges each of them, on the stream and on the
    connection."""
    connection = server(LIMITS, FakeClock())
    opened = only(HeadersReceived, connection.receive(request(1, end=False)))
    connection.sender.headers(opened.stream, RESPONSE)
    for _ in range(2000):
        connection.sender.data(opened.stream, [b"x" * 10], 10)
        assert connection.receive(frame(WINDOW, 0, 0, u32(10)) + frame(WINDOW, 0, 1, u32(10))) == []


def test_a_peer_that_opens_its_window_by_single_bytes_is_an_attacker() -> None:
    connection = server(LIMITS, FakeClock())
    connection.receive(frame(SETTINGS, 0, 0, setting(4, 0)))
    opened = only(HeadersReceived, connection.receive(request(1)))
    connection.sender.response(opened.stream, RESPONSE, [b"x" * 100_000], 100_000, TRAILERS)
    assert (
        failure(connection.receive(frame(WINDOW, 0, 1, u32(1)) * 300)).code
        == ErrorCode.ENHANCE_YOUR_CALM
    )
    assert connection.counters.failures == {"window_update_flood": 1}


class TestRapidReset:
    def attack(self, connection: Http2Connection, count: int) -> list[Event]:
        data = b"".join(
            request(i, end=False) + frame(RST, 0, i, u32(8)) for i in range(1, 2 * count, 2)
        )
        return connection.receive(data)

    def test_ends_the_connection(self) -> None:
        connection = server(LIMITS, FakeClock())
        events = self.attack(connection, 100)
        assert failure(events).reason == "too many streams were opened and reset"
        assert connection.counters.failures == {"rapid_reset": 1}
        assert connection.counters.resets_received_total == 21
        assert not connection.streams

    def test_every_stream_that_was_opened_is_told_as_ended(self) -> None:
        connection = server(LIMITS, FakeClock())
        events = self.attack(connection, 100)
        assert (
            sum(isinstance(event, HeadersReceived) for event in events)
            == sum(isinstance(event, StreamEnded) for event in events)
            == 21
        )

    def test_a_burst_of_deadlines_is_allowed(self) -> None:
        connection = server(LIMITS, FakeClock())
        assert not any(isinstance(event, ConnectionFailed) for event in self.attack(connection, 20))

    def test_resetting_an_answered_stream_is_no_attack(self) -> None:
        """What some clients do when the answer comes before they have ended their request."""
        connection = server(LIMITS, FakeClock())
        for stream_id in range(1, 400, 2):
            opened = only(HeadersReceived, connection.receive(request(stream_id, end=False)))
            connection.sender.response(opened.stream, RESPONSE, [b"x"], 1, TRAILERS)
            events = connection.receive(frame(RST, 0, stream_id, u32(0)))
            assert [type(event) for event in events] == [StreamEnded]

    def test_normal_calls_pay_for_cancelled_ones(self) -> None:
        connection = server(LIMITS, FakeClock())
        for stream_id in range(1, 2000, 4):
            opened = only(HeadersReceived, connection.receive(request(stream_id)))
            connection.sender.response(opened.stream, RESPONSE, [b"x"], 1, TRAILERS)
            events = connection.receive(
                request(stream_id + 2, end=False) + frame(RST, 0, stream_id + 2, u32(8))
            )
            assert not any(isinstance(event, ConnectionFailed) for event in events)


PROVOCATIONS: dict[str, tuple[bool, Callable[[int], bytes]]] = {
    "a window update of 0": (False, lambda i: frame(WINDOW, 0, i, u32(0))),
    "a window above 2^31-1": (False, lambda i: frame(WINDOW, 0, i, u32(2**31 - 1))),
    "data after the end": (True, lambda i: frame(DATA, 0, i, b"x")),
    "headers after the end": (True, lambda i: request(i)),
    "trailers without end": (False, lambda i: request(i, end=False)),
    "data above the window": (False, lambda i: frame(DATA, 0, i, b"x" * 70_000)),
}


class TestMadeYouReset:
    """A client can make the server reset its streams, and so get around a limit on its own
    resets."""

    @pytest.mark.parametrize("provocation", PROVOCATIONS)
    def test_ends_the_connection(self, provocation: str) -> None:
        is_ended, fault = PROVOCATIONS[provocation]
        limits = msgspec.structs.replace(LIMITS, stream_window_bytes=65_535)
        connection = server(limits, FakeClock())
        events: list[Event] = []
        for stream_id in range(1, 100, 2):
            events += connection.receive(request(stream_id, end=is_ended) + fault(stream_id))
            sent(connection)
        assert failure(events).reason == "too many streams were opened and reset"
        assert connection.counters.failures == {"rapid_reset": 1}
        assert sum(isinstance(event, HeadersReceived) for event in events) == 21
        assert not connection.streams

    def test_single_faults_are_allowed(self) -> None:
        clock = FakeClock()
        connection = server(LIMITS, clock)
        for stream_id in range(1, 400, 2):
            clock.advance_s(0.3)
            connection.receive(request(stream_id, end=False) + frame(WINDOW, 0, stream_id, u32(0)))
        assert not connection.is_closed


class TestHeaders:
    def test_continuation_flood_with_empty_frames(self) -> None:
        connection = server()
        events = connection.receive(frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 0, 1) * 20)
        assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM
        assert connection.counters.failures == {"continuation_flood": 1}

    def test_continuation_flood_with_data(self) -> None:
        connection = server(Http2Limits(max_continuation_frames=1000))
        events = connection.receive(
            frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 0, 1, b"\x82" * 1000) * 40
        )
        assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM
        assert connection.counters.failures == {"header_list": 1}

    def test_a_huge_header_frame_is_refused_before_it_arrives(self) -> None:
        connection = server()
        header = frame(HEADERS, END_HEADERS, 1, b"\x82" * 100_000)[:9]
        assert failure(connection.receive(header)).code == ErrorCode.ENHANCE_YOUR_CALM

    def test_hpack_bomb(self) -> None:
        connection = server()
        bomb = b"\x40" + encode_headers([(b"a", b"v" * 4000)])[1:] + b"\xbe" * 1000
        assert (
            failure(connection.receive(request(1, block=bomb))).code == ErrorCode.ENHANCE_YOUR_CALM
        )
        assert connection.counters.failures == {"header_list": 1}

    def test_just_enough_headers_are_fine(self) -> None:
        connection = server()
        block = encode_headers([(b"h%d" % i, b"v" * 900) for i in range(30)])
        opened = only(HeadersReceived, connection.receive(request(1, block=block)))
        assert isinstance(opened, HeadersReceived)

    def test_requests_above_the_stream_limit_are_paid_for(self) -> None:
        connection = server(LIMITS, FakeClock())
        events = connection.receive(b"".join(request(i, end=False) for i in range(1, 1001, 2)))
        assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM
        assert connection.counters.failures == {"headers_flood": 1}
        assert len(connection.streams) == 50


class TestSettings:
    def test_too_many_settings_in_a_frame(self) -> None:
        connection = server()
        assert (
            failure(connection.receive(frame(SETTINGS, 0, 0, setting(99, 1) * 33))).code
            == ErrorCode.ENHANCE_YOUR_CALM
        )
        assert connection.counters.failures == {"settings_flood": 1}

    def test_a_huge_settings_frame_is_refused_before_it_arrives(self) -> None:
        connection = server()
        assert (
            failure(connection.receive(frame(SETTINGS, 0, 0, setting(99, 1) * 2000)[:9])).code
            == ErrorCode.ENHANCE_YOUR_CALM
        )

    def test_window_changes_cost_by_open_streams(self) -> None:
        connection = server(LIMITS, FakeClock())
        connection.receive(b"".join(request(i, end=False) for i in range(1, 100, 2)))
        events = []
        for i in range(20):
            events += connection.receive(frame(SETTINGS, 0, 0, setting(4, i + 1)))
        assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM


class TestUnread:
    def test_answers_to_control_frames_do_not_pile_up(self) -> None:
        connection = server(Http2Limits(control_frame_burst=10**9, max_queued_control_bytes=1000))
        connection.sender.is_paused = True
        events = connection.receive(frame(PING, 0, 0, b"01234567") * 1000)
        assert failure(events).code == ErrorCode.ENHANCE_YOUR_CALM
        assert connection.counters.failures == {"unread_control_frames": 1}

    def test_a_reader_may_ask_as_much_as_it_reads(self) -> None:
        connection = server(Http2Limits(control_frame_burst=10**9, max_queued_control_bytes=1000))
        for _ in range(100):
            connection.receive(frame(PING, 0, 0, b"01234567") * 50)
            assert len(frames(sent(connection))) == 50
        assert not connection.is_closed


class TestFloodMeter:
    def test_time_refills_it_up_to_the_burst(self) -> None:
        clock = FakeClock()
        meter = FloodMeter(10, 5, clock.now_ns)
        assert [meter.charge() for _ in range(11)] == [True] * 10 + [False]
        clock.advance_s(1)
        assert [meter.charge() for _ in range(5)] == [True] * 4 + [False]
        clock.advance_s(1000)
        assert meter.charge()
        assert [meter.charge() for _ in range(11)] == [True] * 10 + [False]

    def test_gifts_do_not_exceed_the_burst(self) -> None:
        meter = FloodMeter(3, 1, FakeClock().now_ns)
        meter.give(100)
        assert [meter.charge() for _ in range(4)] == [True, True, True, False]
