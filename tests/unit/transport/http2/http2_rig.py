"""Frames by hand and pairs of connections, for the HTTP/2 tests."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import ConnectionFailed, Event
from naiad.transport.http2.frame import PREFACE, ErrorCode
from naiad.transport.http2.hpack import encode_headers
from naiad.transport.http2.limits import Http2Limits
from tests.fakes import FakeClock

EventT = TypeVar("EventT", bound=Event)

REQUEST = encode_headers([
    (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a.B/C"), (b":authority", b"x"),
    (b"content-type", b"application/grpc"),
])  # fmt: skip
RESPONSE = encode_headers([(b":status", b"200")])
TRAILERS = encode_headers([(b"grpc-status", b"0")])

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 1, 1, 4, 8, 32


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return (
        struct.pack(">I", len(payload))[1:]
        + bytes((kind, flags))
        + struct.pack(">I", stream_id)
        + payload
    )


def u32(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(key: int, value: int) -> bytes:
    return struct.pack(">HI", key, value)


def request(stream_id: int, *, end: bool = True, block: bytes = REQUEST) -> bytes:
    return frame(HEADERS, END_HEADERS | end, stream_id, block)


HELLO = PREFACE + frame(SETTINGS, 0, 0)


def server(
    limits: Http2Limits | None = None, clock: FakeClock | None = None, **options: Any
) -> Http2Connection:
    """A server that has greeted its client: nothing is left in the output."""
    connection = Http2Connection(
        is_server=True, limits=limits, clock_ns=(clock or FakeClock()).now_ns, **options
    )
    connection.receive(HELLO)
    connection.sender.pop_output()
    return connection


def sent(connection: Http2Connection) -> bytes:
    """All that the connection wants to write now."""
    parts: list[bytes] = []
    while connection.sender.out:
        parts += map(bytes, connection.sender.pop_output())
    return b"".join(parts)


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream id, payload) of each frame."""
    found = []
    while data:
        length = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + length]))
        data = data[9 + length :]
    return found


def only(kind: type[EventT], events: list[Event]) -> EventT:
    """The single event that there is; it is of this kind."""
    (event,) = events
    assert isinstance(event, kind)
    return event


def failure(events: list[Event]) -> ConnectionFailed:
    assert isinstance(events[-1], ConnectionFailed)
    return events[-1]


def goaway_code(connection: Http2Connection) -> ErrorCode:
    kind, _, _, payload = frames(sent(connection))[-1]
    assert kind == GOAWAY
    return ErrorCode(int.from_bytes(payload[4:8], "big"))
