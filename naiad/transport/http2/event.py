"""What a received HTTP/2 byte stream means to the layer above: the output of
Http2Connection.receive."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from naiad.transport.http2.stream import Stream


class HeadersReceived(msgspec.Struct, frozen=True, gc=False):
    """The first header block of a stream: a request at the server, a response at the client."""

    stream: Stream
    head: Any
    """What the connection's `make_head` built from the header list; shared by equal blocks, so
    never changed."""
    end_stream: bool


class TrailersReceived(msgspec.Struct, frozen=True, gc=False):
    stream: Stream
    head: Any


class DataReceived(msgspec.Struct, frozen=True, gc=False):
    """Part of a stream's data, frame boundaries not kept. `data` may be a view of the bytes given
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
    """The stream is gone before both sides finished it: reset by the peer, or by us for what `code`
    says."""

    stream: Stream
    code: int
    is_remote: bool


class PingReceived(msgspec.Struct, frozen=True, gc=False):
    """Already answered; the layer above only judges how often they come."""


class PingAcknowledged(msgspec.Struct, frozen=True, gc=False):
    payload: bytes


class SettingsReceived(msgspec.Struct, frozen=True, gc=False):
    pass


class GoAwayReceived(msgspec.Struct, frozen=True, gc=False):
    last_stream_id: int
    code: int
    debug: bytes


class ConnectionFailed(msgspec.Struct, frozen=True, gc=False):
    """The peer broke the protocol or a limit. A GOAWAY is in the output; nothing more is read, the
    transport must be closed."""

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
