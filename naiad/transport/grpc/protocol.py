"""One client connection of the gRPC endpoint: the asyncio protocol around Http2Connection.

In:  bytes from the transport. Out: calls to method handlers; bytes to the transport. Deadlines are
     in deadlines.py.
Rule: everything that is sent within one event loop iteration leaves in one write. Data goes to the
      transport only while the transport accepts it; the rest waits in the streams, within the
      limits of http2/limits.py.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Final

from naiad.errors import Code, NaiadError
from naiad.transport.grpc.call import Call
from naiad.transport.grpc.deadlines import ConnectionDeadlines
from naiad.transport.grpc.fast_path import StreamOwner
from naiad.transport.grpc.message import PREFIX_BYTES, MessageReader
from naiad.transport.grpc.method import RequestHead
from naiad.transport.grpc.status import GrpcError, Status, refusal
from naiad.transport.http2.connection import Http2Connection
from naiad.transport.http2.event import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoAwayReceived,
    HeadersReceived,
    PingAcknowledged,
    PingReceived,
    SettingsReceived,
    SinkFilled,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.frame import MAX_STREAM_ID, ErrorCode
from naiad.transport.http2.limits import KIB, MIB
from naiad.transport.http2.stream import CLOSED, HALF_CLOSED_LOCAL, HALF_CLOSED_REMOTE, Stream
from naiad.transport.tcp_watch import discard
from naiad.transport.write_watch import WriteWatch

if TYPE_CHECKING:
    from naiad.transport.grpc.endpoint import GrpcEndpoint

_read_length = struct.Struct(">I").unpack_from
_LONG_READ_BYTES: Final = 8 * KIB
"""The fast path handles a longer read only while there is time in this turn of the event loop."""
_FIRST_PIECE_BYTES: Final = 4 * KIB
"""A read is handled in pieces, each twice as long as the one before: the shortest requests need a
few ms for this many bytes."""
_TELLING_BYTES: Final = 1 * KIB
"""This much of a message tells what it is for."""
_JOIN_BYTES: Final = 64 * KIB
_WRITE_HIGH_BYTES: Final = 4 * MIB
_DRAIN_PING: Final = b"draining"
_HTTP1_TEXT: Final = b"This port speaks gRPC, which is HTTP/2.\n"
_HTTP1_RESPONSE: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n" % len(_HTTP1_TEXT) + _HTTP1_TEXT
)


class GrpcProtocol(asyncio.BufferedProtocol):
    def __init__(self, endpoint: GrpcEndpoint) -> None:
        self.endpoint = endpoint
        self.options = endpoint.options
        self.gzip_level = endpoint.gzip_level
        self.loop: asyncio.AbstractEventLoop
        self.account = endpoint.budget.open_account()
        self._unsent_bytes = 0
        """Bytes in the transport's buffer, as they were last counted."""
        self.connection = Http2Connection(
            is_server=True,
            make_head=endpoint.make_head,
            limits=endpoint.options.http2,
            counters=endpoint.counters,
            clock_ns=endpoint.clock_ns,
            account=self.account,
        )
        self.sender = self.connection.sender
        self._incoming = self.connection.incoming
        self._transport: asyncio.Transport
        self._read_view = endpoint.read_view
        self._max_frame_message_bytes = endpoint.options.max_message_bytes + PREFIX_BYTES
        self._deferred = b""
        """Bytes that are handled in a later turn of the event loop. Reading is paused meanwhile."""
        self._is_direct = False
        self._is_receiving = False
        self._is_flush_due = False
        self._is_lost = False
        self.is_drain_final = False
        self.deadlines = ConnectionDeadlines(self, self.options, endpoint.clock_ns())
        make_fast_path = endpoint.make_fast_path
        self._fast_path = None if make_fast_path is None else make_fast_path(self)

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.loop = self.endpoint.loop
        self._transport = transport
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES)
        ssl_object = transport.get_extra_info("ssl_object")
        if ssl_object is not None and ssl_object.selected_alpn_protocol() != "h2":
            self.count("alpn")
            transport.abort()
            return
        refusal = self.endpoint.admit(self)
        if refusal is not None:
            self.connection.goaway(0, ErrorCode.ENHANCE_YOUR_CALM, refusal.encode())
            self.flush()
            self.close()
            return
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self.endpoint.forget(self)
        self.connection.is_closed = True
        self._cancel_calls()
        self.count_memory()

    def get_buffer(self, sizehint: int) -> memoryview:
        sink = None
        if self._incoming.frame_left and not self._deferred:
            sink = self.connection.receive_buffer()
        self._is_direct = sink is not None
        return self._read_view if sink is None else sink

    def buffer_updated(self, nbytes: int) -> None:
        connection = self.connection
        self.deadlines.received_bytes += nbytes
        self._is_receiving = True
        try:
            if self._is_direct:
                self._handle(connection.received_into_buffer(nbytes))
            else:
                view = self._read_view
                fast_path = self._fast_path
                consumed = 0
                if (
                    fast_path is not None
                    and not self._deferred
                    and (nbytes < _LONG_READ_BYTES or not self.endpoint.turn.is_over(self.loop))
                ):
                    consumed = fast_path.consume(view, nbytes)
                if consumed < nbytes:
                    self._read_view = self.endpoint.read_view
                    self._receive(bytes(view[consumed:nbytes]))
        finally:
            self._is_receiving = False
        if self.sender.out or self.is_drain_final:
            self.flush()

    def _receive(self, data: bytes) -> None:
        """Handles bytes on the full path, as far as there is time in this turn."""
        endpoint = self.endpoint
        offset, piece_bytes = 0, _FIRST_PIECE_BYTES
        if self._deferred:  # the transport had read these bytes before it was paused
            self._deferred += data
            return
        while offset < len(data):
            if endpoint.turn.is_over(self.loop):
                self._deferred = data[offset:]
                self._transport.pause_reading()
                endpoint.turn.wait(self._on_turn)
                return
            self._handle(self.connection.receive(data[offset : offset + piece_bytes]))
            offset += piece_bytes
            piece_bytes *= 2

    def _on_turn(self) -> None:
        data, self._deferred = self._deferred, b""
        if self.connection.is_closed:
            return
        self._is_receiving = True
        try:
            fast_path = self._fast_path
            consumed = 0 if fast_path is None else fast_path.consume(memoryview(data), len(data))
            self._receive(data[consumed:])
        finally:
            self._is_receiving = False
        self.flush()
        if not self._deferred and not self.connection.is_closed:
            self._transport.resume_reading()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case DataReceived():
                    self._on_data(event)
                case HeadersReceived():
                    self._on_headers(event)
                case SinkFilled():
                    self._on_sink_filled(event)
                case TrailersReceived():
                    self._on_trailers(event)
                case StreamEnded():
                    self._on_stream_ended(event)
                case PingReceived():
                    self._on_ping()
                case PingAcknowledged():
                    self._on_ping_acknowledged(event)
                case ConnectionFailed():
                    self._on_failed(event)
                case SettingsReceived() | GoAwayReceived():
                    pass

    def eof_received(self) -> bool:
        """A client that only half-closes its socket still gets the responses to requests that have
        arrived as a whole. The other calls end: what they wait for cannot arrive any more. TLS does
        not support this."""
        if self._transport.get_extra_info("ssl_object") is not None:
            return False
        for stream in list(self.connection.streams.values()):
            if stream.state != HALF_CLOSED_REMOTE:
                if stream.context is not None:
                    stream.context.cancel()
                self.sender.reset(stream, ErrorCode.CANCEL)
        if not self.connection.streams:
            return False
        # The second GOAWAY follows later: the first write to a socket that is closed on the other
        # side provokes the reset that the second one notices.
        self.drain()
        return True

    def pause_writing(self) -> None:
        self.sender.is_paused = True
        self.count_memory()

    def resume_writing(self) -> None:
        self.sender.is_paused = False
        self.count_memory()
        self.sender.unread_control_bytes = 0
        self.sender.pump()
        self.flush()

    # Writing.

    def flush_soon(self) -> None:
        """Flushes at the end of this event loop iteration: all responses until then share one
        write."""
        if not (self._is_receiving or self._is_flush_due or self._is_lost):
            self._is_flush_due = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._is_flush_due = False
        if self._is_lost:
            return
        sender = self.sender
        transport = self._transport
        while sender.out:
            num_bytes = sender.out_bytes
            out = sender.pop_output()
            if len(out) == 1:
                transport.write(out[0])
            elif num_bytes <= _JOIN_BYTES:
                transport.write(b"".join(out))
            else:
                transport.writelines(out)
        if self.is_drain_final and not self.connection.streams:
            self.close()

    def close(self) -> None:
        """Closes after what is already written. ConnectionDeadlines aborts a transport that cannot
        finish that."""
        if not self.deadlines.closing_ns:
            self.deadlines.closing_ns = self.endpoint.clock_ns()
            self.connection.is_closed = True
            self._transport.close()

    # Events.

    def _on_headers(self, event: HeadersReceived) -> None:
        stream = event.stream
        head: RequestHead = event.head
        if stream.state == CLOSED:
            return
        method = head.method
        if method is None:
            if head.rejection is None:
                self.sender.reset(stream, ErrorCode.PROTOCOL_ERROR)
                self.on_provoked_end(stream)
            else:
                self.sender.headers(stream, head.rejection, end_stream=True)
                self._handle(self.connection.charge_refused())
            return
        admission = None
        if head.gate is not None:
            is_unary = method.stream is None
            gate, peer = head.gate, self._transport
            entrance = gate.enter(peer) if is_unary else gate.check(peer)
            if isinstance(entrance, NaiadError):
                if (
                    entrance.code is Code.RESOURCE_EXHAUSTED
                    and method.on_lost is not None
                    and not event.end_stream
                ):
                    call = stream.context = Call(self, stream, head, method)
                    call.refusal = entrance
                    return
                self.sender.headers(stream, refusal(entrance), end_stream=True)
                return
            admission = entrance
        call = stream.context = Call(self, stream, head, method, admission)
        if head.timeout_ns >= 0 or method.stream is not None:
            call.start(self.endpoint.clock_ns())
        if event.end_stream:
            call.receive([], True)

    def _on_data(self, event: DataReceived) -> None:
        owner: StreamOwner | None = event.stream.context
        if owner is None:
            return
        data = event.data
        if owner.reader is None:
            call = owner
            assert isinstance(call, Call)
            if call.refusal is not None and len(data) >= _TELLING_BYTES:
                call.refuse(data[PREFIX_BYTES:], is_compressed=data[0] == 1)
                return
            size = len(data)
            if (
                event.end_stream
                and PREFIX_BYTES <= size <= self._max_frame_message_bytes
                and data[0] == 0
                and _read_length(data, 1)[0] == size - PREFIX_BYTES
                and call.handler is None
            ):
                call.on_message(data[PREFIX_BYTES:])
                return
            call.reader = MessageReader(
                self.options.max_message_bytes, self.account, call.method.allocate
            )
        self._feed(owner, event.stream, data, event.end_stream)

    def _feed(
        self, owner: StreamOwner, stream: Stream, data: bytes | memoryview, end_stream: bool
    ) -> None:
        assert owner.reader is not None
        try:
            messages = owner.reader.feed(data)
        except GrpcError as error:
            if isinstance(owner, Call) and isinstance(owner.reader, MessageReader):
                message = owner.reader.beginning(data)
                owner.lose(message, is_compressed=owner.reader.is_compressed)
            owner.abort(error.status, error.message, error.fields)
            if not error.fields:  # a full server is not the client's fault
                self.on_provoked_end(stream)
            return
        self._after_read(owner, stream)
        owner.receive(messages, end_stream)

    def on_arrival_begun(
        self, owner: StreamOwner, stream: Stream, data: memoryview, next_read_bytes: int
    ) -> None:
        """A large request has begun to arrive on the fast path; `data` are the first bytes of its
        last tensor. The next request will be alike: a short read leaves most of its tensor to be
        read into the tensor's own memory."""
        self._feed(owner, stream, data, False)
        self._read_view = self.endpoint.read_view[:next_read_bytes]

    def _on_sink_filled(self, event: SinkFilled) -> None:
        owner: StreamOwner | None = event.stream.context
        if owner is None or owner.reader is None:
            return
        try:
            messages = owner.reader.filled(event.num_bytes)
        except GrpcError as error:
            owner.abort(error.status, error.message, error.fields)
            return
        self._after_read(owner, event.stream)
        owner.receive(messages, event.end_stream)

    def _after_read(self, owner: StreamOwner, stream: Stream) -> None:
        reader = owner.reader
        assert reader is not None
        stream.sink = reader.sink()

    def _on_trailers(self, event: TrailersReceived) -> None:
        owner: StreamOwner | None = event.stream.context
        if owner is not None:
            owner.receive([], True)

    def _on_stream_ended(self, event: StreamEnded) -> None:
        owner: StreamOwner | None = event.stream.context
        if owner is not None:
            owner.cancel()

    def _on_ping(self) -> None:
        if self.deadlines.is_ping_abuse(self.endpoint.clock_ns()):
            self.count("too_many_pings")
            self.connection.goaway(
                self.connection.last_peer_stream_id, ErrorCode.ENHANCE_YOUR_CALM, b"too_many_pings"
            )
            self._end_all()

    def _on_ping_acknowledged(self, event: PingAcknowledged) -> None:
        if event.payload == _DRAIN_PING and self.deadlines.drain_ns:
            self.finish_drain()

    def _on_failed(self, event: ConnectionFailed) -> None:
        if self.connection.last_peer_stream_id == 0 and event.reason.startswith("not HTTP/2"):
            self.sender.pop_output()
            self._transport.write(_HTTP1_RESPONSE)
        self._end_all()

    def _end_all(self) -> None:
        """Ends the connection: its calls are cancelled, and what is already in the output is still
        written."""
        self._cancel_calls()
        self.flush()
        self.close()

    def _cancel_calls(self) -> None:
        for stream in list(self.connection.streams.values()):
            if stream.context is not None:
                stream.context.cancel()
            self.sender.forget(stream)

    def drop_slow_reader(self, stream: Stream) -> None:
        self.endpoint.counters.slow_readers_total += 1
        self.sender.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

    def on_provoked_end(self, stream: Stream) -> None:
        """A fault of the client's has ended a call. Opening streams and provoking their end is
        metered like opening and resetting them (MadeYouReset)."""
        if stream.state == HALF_CLOSED_LOCAL:
            # The status is sent. A later reset by the client would count as a normal end.
            self.sender.reset(stream, ErrorCode.NO_ERROR)
        self._handle(self.connection.charge_reset())
        self.flush_soon()

    # The end.

    def drain(self) -> None:
        """Accepts no new calls: the client is told, calls under way may finish, and the connection
        closes after the last one."""
        if self.deadlines.drain_ns or self.deadlines.closing_ns:
            return
        self.deadlines.drain_ns = self.endpoint.clock_ns()
        # The first GOAWAY refuses nothing: calls that are on their way must not fail. The
        # acknowledgement of the ping shows that none are left.
        self.connection.goaway(MAX_STREAM_ID)
        self.connection.ping(_DRAIN_PING)
        self.flush_soon()

    def finish_drain(self) -> None:
        if not self.is_drain_final:
            self.is_drain_final = True
            self.connection.goaway(self.connection.last_peer_stream_id)
            self.flush_soon()

    def stop_calls(self) -> None:
        """The server stops: ends the calls that wait for nothing."""
        for stream in list(self.connection.streams.values()):
            if stream.context is not None:
                stream.context.stop()
        self.flush()

    def abort_partial_calls(self, status: Status, message: str) -> None:
        """Ends the calls whose request has not arrived as a whole."""
        for stream in list(self.connection.streams.values()):
            owner: StreamOwner | None = stream.context
            if owner is None:
                continue
            reader = owner.reader
            if owner.is_message_due or (reader is not None and not reader.is_empty):
                owner.abort(status, message)
        self.flush()

    def abort_calls(self, status: Status, message: str) -> None:
        """Ends every call with a status, then the connection."""
        for stream in list(self.connection.streams.values()):
            if stream.context is not None:
                stream.context.abort(status, message)
        self.finish_drain()
        self.flush()
        self.close()

    def abort(self) -> None:
        self._transport.abort()

    def discard(self) -> None:
        """Aborts, for a client that does not read."""
        discard(self._transport)

    # Called by ConnectionDeadlines.

    def give_up(self, cause: str, reason: str) -> None:
        self.count(cause)
        self.connection.goaway(
            self.connection.last_peer_stream_id, ErrorCode.NO_ERROR, reason.encode()
        )
        self._end_all()

    def count(self, cause: str) -> None:
        self.endpoint.counters.failures[cause] += 1

    @property
    def peer(self) -> asyncio.BaseTransport:
        return self._transport

    def count_memory(self) -> None:
        """Counts what the transport has accepted and the client has not read, and gives back what
        the account has reserved for nothing."""
        unsent_bytes = 0 if self._is_lost else self._transport.get_write_buffer_size()
        self.account.add(unsent_bytes - self._unsent_bytes)
        self._unsent_bytes = unsent_bytes
        self.account.settle()

    def watch_client(self) -> WriteWatch:
        return WriteWatch(self._transport)

    def write_buffer_bytes(self) -> int:
        return self._transport.get_write_buffer_size()
