"""One HTTP/2 connection to a gRPC server: the asyncio protocol around Http2Connection as a client.

In:  `start(block)` for a new call, `write(stream, message)` for its messages.
Out: calls to the stream's StreamReader.
Rule: data sent while received bytes are being handled is written once, after them. All other data
      is written immediately.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Any, Protocol

from naiad.perf.channels.address import Address
from naiad.perf.channels.call import ConnectError
from naiad.perf.channels.grpc_head import GrpcHead, make_grpc_head, status_error
from naiad.perf.channels.http_channel import CONNECT_LIMIT_S, connect_reason
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
from naiad.transport.http2.limits import Http2Limits
from naiad.transport.http2.stream import Stream
from naiad.transport.tcp_watch import expect_responses

_JOIN_BYTES = 1 << 16
# The server is under test, so its frames are not limited.
_LIMITS = Http2Limits(
    control_frame_burst=1 << 30,
    reset_burst=1 << 30,
    max_header_list_bytes=1 << 20,
    max_header_block_bytes=1 << 20,
)


class StreamReader(Protocol):
    def on_data(self, stream: Stream, data: bytes | memoryview, now_ns: int) -> None: ...

    def on_closed(self, stream: Stream, error: str | None, now_ns: int) -> None:
        """Called exactly once. `error` is None for status OK."""


class GrpcConnection(asyncio.Protocol):
    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.num_streams = 0
        self.is_open = False
        self.close_reason = ""
        """The reason why the connection is no longer open."""
        self._address = address
        self._tls = tls
        self._clock_ns = clock_ns
        self._http2 = Http2Connection(is_server=False, make_head=make_grpc_head, limits=_LIMITS)
        self._transport: asyncio.Transport | None = None
        self._is_receiving = False

    async def open(self) -> None:
        """Raises ConnectError."""
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: self,
                    address.host,
                    address.port,
                    ssl=self._tls,
                    server_hostname=address.host if self._tls else None,
                )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            raise ConnectError(
                f"cannot connect to {address.authority}: {connect_reason(error)}"
            ) from None

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # Calls.

    def start(self, block: bytes, owner: StreamReader) -> Stream:
        """Opens a stream. The caller must flush, usually by writing the first message."""
        stream = self._http2.open_stream(block)
        stream.context = owner
        self.num_streams += 1
        return stream

    def write(self, stream: Stream, message: bytes, *, is_last: bool) -> None:
        self._http2.sender.data(stream, (message,), len(message), end_stream=is_last)
        if not self._is_receiving:
            self.flush()

    def finish(self, stream: Stream) -> None:
        self._http2.sender.data(stream, (), 0, end_stream=True)
        self.flush()

    def cancel(self, stream: Stream) -> None:
        if stream.context is not None:
            stream.context = None
            self.num_streams -= 1
        self._http2.sender.reset(stream, ErrorCode.CANCEL)
        self.flush()

    def flush(self) -> None:
        sender, transport = self._http2.sender, self._transport
        while transport is not None and sender.out:
            num_bytes = sender.out_bytes
            out = sender.pop_output()
            if num_bytes <= _JOIN_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(out)

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(1 << 24)
        expect_responses(transport.get_extra_info("socket"))
        self._transport = transport
        self.is_open = True
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        reason = f": {connect_reason(exc)}" if exc is not None else ""
        self._end_all(f"the server closed the connection before it responded{reason}")

    def pause_writing(self) -> None:
        self._http2.sender.is_paused = True

    def resume_writing(self) -> None:
        sender = self._http2.sender
        sender.is_paused = False
        sender.pump()
        self.flush()

    def data_received(self, data: bytes) -> None:
        now_ns = self._clock_ns()
        self._is_receiving = True
        try:
            for event in self._http2.receive(data):
                self._handle(event, now_ns)
        finally:
            self._is_receiving = False
        self.flush()

    def _handle(self, event: Any, now_ns: int) -> None:
        kind = type(event)
        if kind is DataReceived:
            owner = event.stream.context
            if owner is not None:
                owner.on_data(event.stream, event.data, now_ns)
                if event.end_stream:
                    self._end(event.stream, "the stream ended without a status", now_ns)
        elif kind is TrailersReceived:
            self._end(event.stream, status_error(event.head), now_ns)
        elif kind is HeadersReceived:
            if event.end_stream:
                self._end(event.stream, status_error(event.head), now_ns)
            elif event.head.http_status != b"200":
                self._refuse(event.stream, event.head, now_ns)
        elif kind is StreamEnded:
            self._end(event.stream, f"the stream was reset ({_code_name(event.code)})", now_ns)
        elif kind is GoAwayReceived:
            # Calls in flight may still get a response; new calls need a new connection.
            self.is_open = False
        elif kind is ConnectionFailed:
            self._end_all(f"HTTP/2: {event.reason}")
            if self._transport is not None:
                self.flush()
                self._transport.close()

    def _refuse(self, stream: Stream, head: GrpcHead, now_ns: int) -> None:
        self._end(stream, status_error(head), now_ns)
        self._http2.sender.reset(stream, ErrorCode.CANCEL)

    def _end(self, stream: Stream, error: str | None, now_ns: int) -> None:
        owner: StreamReader | None = stream.context
        if owner is not None:
            stream.context = None
            self.num_streams -= 1
            owner.on_closed(stream, error, now_ns)

    def _end_all(self, error: str) -> None:
        self.is_open = False
        self.close_reason = self.close_reason or error
        now_ns = self._clock_ns()
        for stream in list(self._http2.streams.values()):
            self._end(stream, error, now_ns)


def _code_name(code: int) -> str:
    return ErrorCode(code).name if code in set(ErrorCode) else str(code)


class SharedConnection:
    """A connection that several channels share. It is opened on first use and reopened after it was
    lost."""

    def __init__(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        self.current: GrpcConnection | None = None
        self._address = address
        self._tls = tls
        self._opening: asyncio.Task[GrpcConnection] | None = None

    async def get(self) -> GrpcConnection:
        """Raises ConnectError."""
        if self.current is not None and self.current.is_open:
            return self.current
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        try:
            connection = await asyncio.shield(self._opening)
        finally:
            if self._opening is not None and self._opening.done():
                self._opening = None
        if not connection.is_open:
            # A server of another protocol responds to our preface by closing the connection.
            reason = connection.close_reason or "it closes the connection immediately"
            raise ConnectError(f"no gRPC server at {self._address.authority}: {reason}")
        return connection

    async def _open(self) -> GrpcConnection:
        connection = GrpcConnection(self._address, self._tls)
        await connection.open()
        self.current = connection
        return connection

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self.current is not None:
            self.current.close()
