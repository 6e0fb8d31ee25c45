"""The events that Http2Connection.receive returns to the layer above."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from naiad.transport.http2.stream import Stream


class HeadersReceived(msgspec.Struct, frozen=True, gc=False):
    """The first header block of a stream: a request at the server, a response at the client."""

    stream: Stream
    head: Any
    """The result of the connection's `make_head`; equal blocks share it, so it never changes."""
    end_stream: bool


class TrailersReceived(msgspec.Struct, frozen=True, gc=False):
    stream: Stream
    head: Any


class DataReceived(msgspec.Struct, frozen=True, gc=False):
    """A part of a stream's data; frame boundaries are lost. `data` may be a view of the bytes given
    to `receive`."""

    stream: Stream
    data: bytes | memoryview
    end_stream: bool


class SinkFilled(msgspec.Struct, frozen=True, gc=False):
    """`num_bytes` of the stream's data are already in the memory that the consumer gave as
    `stream.sink`."""

    stream: Stream
    num_bytes: int
    end_stream: bool


class StreamEnded(msgspec.Struct, frozen=True, gc=False):
    """The stream was reset before both sides finished it, by the peer or by us, for the reason
    `code`."""

    stream: Stream
    code: int
    is_remote: bool


class PingReceived(msgspec.Struct, frozen=True, gc=False):
    """The ping is acknowledged already; the layer above only judges how often pings come."""


class PingAcknowledged(msgspec.Struct, frozen=True, gc=False):
    payload: bytes


class SettingsReceived(msgspec.Struct, frozen=True, gc=False):
    pass


class GoAwayReceived(msgspec.Struct, frozen=True, gc=False):
    last_stream_id: int
    code: int
    debug: bytes


class ConnectionFailed(msgspec.Struct, frozen=True, gc=False):
    """The peer broke the protocol or a limit. A GOAWAY is in the output, nothing more is read, and
    the transport must be closed."""

    code: int
    reason: str


Event: TypeAlias = (
    HeadersReceived
    | TrailersReceived
    | DataReceived
    | SinkFilled
    | StreamEnded
    | PingReceived
    | PingAcknowledged
    | SettingsReceived
    | GoAwayReceived
    | ConnectionFailed
)
