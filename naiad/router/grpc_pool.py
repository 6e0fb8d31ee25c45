"""gRPC connections to one replica: HTTP/2, with all calls on as few connections as possible.

In:  `start(block, owner)` for a call, `write` for its messages. Out: calls to the owner.
Rule: what is sent within one turn of the event loop leaves in one write. A paused call does not
      renew its window, so that the replica stops sending after at most one window.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Protocol, cast

import msgspec

from naiad.core.tensor import Buffer
from naiad.router.address import Address
from naiad.router.http_fields import is_for_client, parse_retry_after
from naiad.router.http_pool import CONNECT_LIMIT_S, connect_reason
from naiad.transport.grpc.status import Status
from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import (
    ConnectionFailed,
    DataReceived,
    GoAwayReceived,
    HeadersReceived,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.frame import ErrorCode
from naiad.transport.http2.hpack import HeaderList
from naiad.transport.http2.limits import MIB, Http2Limits
from naiad.transport.http2.sender import SlowReaderError
from naiad.transport.http2.stream import CLOSED, Stream
from naiad.transport.tcp_watch import VANISHED_S, TcpWatch, discard

MAX_CONNECTIONS = 8
SUSPECT_S = 3.0
"""A connection on which nothing has been acknowledged for so long gets no new calls."""
_JOIN_BYTES = 1 << 16
_LIMITS = Http2Limits(
    stream_window_bytes=4 * MIB,
    connection_window_bytes=256 * MIB,
    # One connection carries the calls of many clients.
    control_frame_burst=1 << 20,
    control_frames_per_s=1 << 20,
    reset_burst=1 << 20,
    resets_per_s=1 << 20,
    max_header_list_bytes=256 * 1024,
    max_header_block_bytes=256 * 1024,
)
_RESERVED = frozenset((
    b":status", b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding",
    b"grpc-accept-encoding", b"server", b"date", b"content-length", b"host",
))  # fmt: skip


class GrpcResponseHead(msgspec.Struct, frozen=True):
    """The headers or the trailers of a response."""

    http_status: bytes
    grpc_status: int
    """-1 if the block has no status."""
    message: bytes
    """Percent-encoded, as the replica sent it."""
    fields: tuple[tuple[bytes, bytes], ...]
    """What else is for the client."""

    @property
    def is_refusal(self) -> bool:
        """The replica has no room for the call."""
        return self.grpc_status in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED) and not any(
            name.startswith(b"x-ratelimit-") for name, _ in self.fields
        )

    @property
    def is_not_admitted(self) -> bool:
        """The replica says that it has not begun with the call and that others may."""
        return self.is_refusal and any(
            name in (b"retry-after", b"grpc-retry-pushback-ms") for name, _ in self.fields
        )

    @property
    def retry_after_s(self) -> float:
        """-1 if the replica does not say when it may have room."""
        found = dict(self.fields)
        pushback = found.get(b"grpc-retry-pushback-ms", b"")
        if pushback.isdigit() and len(pushback) < 9:
            return int(pushback) / 1000
        return parse_retry_after(found.get(b"retry-after", b""))


def read_head(headers: HeaderList) -> GrpcResponseHead:
    found = dict(headers)
    status = found.get(b"grpc-status", b"")
    if status:
        number = int(status) if status.isdigit() and len(status) < 4 else int(Status.UNKNOWN)
    else:
        number = -1
    return GrpcResponseHead(
        found.get(b":status", b""),
        number,
        found.get(b"grpc-message", b""),
        tuple(
            (name, value)
            for name, value in headers
            if name not in _RESERVED and is_for_client(name, value)
        ),
    )


class CallOwner(Protocol):
    stream: Stream | None
    upstream: GrpcUpstream | None
    """Both are set when the call is sent."""

    def on_started(self) -> None:
        """The call may be written."""

    def on_data(self, data: bytes | memoryview) -> None: ...
    def on_leaving(self) -> None:
        """The replica takes no new calls. This one goes on."""

    def on_closed(self, head: GrpcResponseHead) -> None:
        """The last call: the replica has ended the call with a status."""

    def on_lost(self, reason: str, *, is_unsent: bool, is_reused: bool) -> None:
        """The last call: there will be no status."""


class GrpcPool:
    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self.address = address
        self.connections: list[GrpcUpstream] = []
        self._tls = tls
        self._waiting: list[tuple[bytes, CallOwner]] = []
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False

    def start(self, block: bytes, owner: CallOwner) -> None:
        """Opens a stream for the call, now or when there is a connection; the owner is told."""
        for connection in self.connections:
            if connection.is_open and connection.has_room:
                connection.start(block, owner)
                return
        self._waiting.append((block, owner))
        if self._opening is None:
            if sum(connection.is_open for connection in self.connections) >= MAX_CONNECTIONS:
                return  # a call that ends makes room
            self._opening = asyncio.get_running_loop().create_task(self._open())

    async def connect(self) -> None:
        """Opens a further connection. Raises OSError or TimeoutError."""
        address = self.address
        async with asyncio.timeout(CONNECT_LIMIT_S):
            connection = GrpcUpstream(self)
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address.host,
                address.port,
                ssl=self._tls,
                server_hostname=address.host if self._tls else None,
            )
        self.connections.append(connection)

    async def _open(self) -> None:
        reason = ""
        try:
            await self.connect()
        except (OSError, TimeoutError) as error:
            reason = f"cannot connect to {self.address.authority}: {connect_reason(error)}"
        finally:
            self._opening = None
        waiting, self._waiting = self._waiting, []
        for block, owner in waiting:
            if reason:
                owner.on_lost(reason, is_unsent=True, is_reused=False)
            else:
                self.start(block, owner)

    def cancel(self, owner: CallOwner) -> None:
        """The owner wants no response any more."""
        if owner.stream is not None and owner.upstream is not None:
            owner.upstream.cancel(owner.stream)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] is not owner]

    def on_room(self) -> None:
        waiting, self._waiting = self._waiting, []
        for block, owner in waiting:
            self.start(block, owner)

    def forget(self, connection: GrpcUpstream) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
        if self._waiting and not self._is_closed:
            self.on_room()

    def sweep(self, now_s: float) -> None:
        """Closes connections that nothing uses any more or whose other end has vanished; called at
        regular times."""
        for connection in list(self.connections):
            silent_s = connection.watch.silent_s(now_s)
            if silent_s >= VANISHED_S:
                connection.fail(f"the replica has acknowledged nothing for {silent_s:.0f} s")
            elif silent_s >= SUSPECT_S:
                connection.is_open = False  # new calls get another one
            if not connection.is_open and not connection.http2.streams:
                connection.close()

    def retire(self) -> None:
        """New calls get new connections."""
        for connection in self.connections:
            connection.is_open = False

    def fail_waiting(self, reason: str, should_fail: Any) -> None:
        """The replica does not respond: ends the calls that `should_fail`, and uses no connection
        for new ones."""
        self.retire()
        for connection in list(self.connections):
            for stream in list(connection.http2.streams.values()):
                owner = stream.context
                if owner is not None and should_fail(owner):
                    connection.cancel(stream)
                    owner.on_lost(reason, is_unsent=False, is_reused=False)
            if not connection.http2.streams:
                connection.close()

    def close(self) -> None:
        self._is_closed = True
        for connection in list(self.connections):
            connection.close()


class GrpcUpstream(asyncio.Protocol):
    def __init__(self, pool: GrpcPool) -> None:
        self._pool = pool
        self.http2 = Http2Connection(is_server=False, make_head=read_head, limits=_LIMITS)
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self.watch: TcpWatch
        self._is_receiving = False
        self._is_flush_due = False
        self._has_served = False

    @property
    def has_room(self) -> bool:
        return len(self.http2.streams) < self.http2.peer_max_concurrent_streams

    def start(self, block: bytes, owner: CallOwner) -> None:
        stream = self.http2.open_stream(block)
        stream.context = owner
        owner.stream = stream
        owner.upstream = self
        owner.on_started()

    def write(
        self, stream: Stream, pieces: Sequence[Buffer], num_bytes: int, *, is_last: bool
    ) -> None:
        if stream.state == CLOSED:
            return
        try:
            self.http2.sender.data(stream, pieces, num_bytes, end_stream=is_last)
        except SlowReaderError:
            owner: CallOwner | None = stream.context
            self.cancel(stream)
            if owner is not None:
                owner.on_lost("the replica does not read", is_unsent=False, is_reused=False)
            return
        self.flush_soon()

    def cancel(self, stream: Stream) -> None:
        stream.context = None
        self.http2.sender.reset(stream, ErrorCode.CANCEL)
        self.flush_soon()

    def pause(self, stream: Stream) -> None:
        self.http2.pause(stream)

    def resume(self, stream: Stream) -> None:
        self.http2.resume(stream)
        self.flush_soon()

    def flush_soon(self) -> None:
        if not (self._is_receiving or self._is_flush_due or self._transport is None):
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self._is_flush_due = False
        sender, transport = self.http2.sender, self._transport
        while transport is not None and sender.out:
            num_bytes = sender.out_bytes
            out = sender.pop_output()
            if num_bytes <= _JOIN_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(out)

    def fail(self, reason: str) -> None:
        if self._transport is not None:
            discard(self._transport)
        self._end_all(reason)

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(4 * MIB)
        self.watch = TcpWatch(transport)
        self.is_open = True
        self.flush()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        self.is_open = False
        self._pool.forget(self)
        reason = f": {connect_reason(exc)}" if exc is not None else ""
        self._end_all(f"the replica closed the connection before its response was complete{reason}")

    def pause_writing(self) -> None:
        self.http2.sender.is_paused = True

    def resume_writing(self) -> None:
        sender = self.http2.sender
        sender.is_paused = False
        sender.pump()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self._is_receiving = True
        had_room = self.has_room
        try:
            for event in self.http2.receive(data):
                self._handle(event)
        finally:
            self._is_receiving = False
        self.flush()
        if not had_room and self.has_room:
            self._pool.on_room()

    def _handle(self, event: Any) -> None:
        kind = type(event)
        if kind is DataReceived:
            owner = event.stream.context
            if owner is not None:
                if len(event.data):
                    owner.on_data(event.data)
                if event.end_stream:
                    self._lose(event.stream, "the replica ended the call without a status")
        elif kind is TrailersReceived:
            self._close(event.stream, event.head)
        elif kind is HeadersReceived:
            if event.end_stream:
                self._close(event.stream, event.head)
            elif event.head.http_status != b"200":
                stream = event.stream
                self._lose(stream, f"HTTP status {event.head.http_status.decode('latin-1')}")
                self.http2.sender.reset(stream, ErrorCode.CANCEL)
        elif kind is StreamEnded:
            self._lose(
                event.stream,
                f"the replica reset the call ({_code_name(event.code)})",
                is_unsent=event.code == ErrorCode.REFUSED_STREAM,
            )
        elif kind is GoAwayReceived:
            self._on_goaway(event.last_stream_id)
        elif kind is ConnectionFailed:
            self._end_all(f"HTTP/2: {event.reason}")
            self.flush()
            self.close()

    def _on_goaway(self, last_stream_id: int) -> None:
        """Calls up to `last_stream_id` go on; the replica has not begun with the others."""
        self.is_open = False
        for stream in list(self.http2.streams.values()):
            if stream.id > last_stream_id:
                self._lose(stream, "the replica is closing the connection", is_unsent=True)
            elif stream.context is not None:
                stream.context.on_leaving()

    def _close(self, stream: Stream, head: GrpcResponseHead) -> None:
        owner: CallOwner | None = stream.context
        stream.context = None
        self._has_served = True
        if stream.state != CLOSED:
            # The replica has responded before the request was complete.
            self.http2.sender.reset(stream, ErrorCode.NO_ERROR)
        if owner is None:
            return
        if head.grpc_status < 0:
            owner.on_lost("the response has no gRPC status", is_unsent=False, is_reused=False)
        else:
            owner.on_closed(head)

    def _lose(self, stream: Stream, reason: str, *, is_unsent: bool = False) -> None:
        owner: CallOwner | None = stream.context
        stream.context = None
        if owner is not None:
            owner.on_lost(reason, is_unsent=is_unsent, is_reused=False)

    def _end_all(self, reason: str) -> None:
        self.is_open = False
        for stream in list(self.http2.streams.values()):
            owner: CallOwner | None = stream.context
            stream.context = None
            if owner is not None:
                owner.on_lost(reason, is_unsent=False, is_reused=False)


def _code_name(code: int) -> str:
    return ErrorCode(code).name if code in set(ErrorCode) else str(code)
