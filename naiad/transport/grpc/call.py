"""One gRPC call at the server: its stream, its request messages on the way in, its responses on
the way out.

Rule: a call ends once. After `reply`, `finish` or a cancellation it ignores everything, so a late
      response of a model is harmless.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from traceback import format_exc
from typing import TYPE_CHECKING, Final

from naiad import log
from naiad.core.memory_budget import SMALL_BYTES, MemoryAccount
from naiad.errors import NaiadError
from naiad.transport.grpc.compression import (
    INLINE_BYTES,
    MIN_COMPRESSED_BYTES,
    compress_gzip,
    decompress,
)
from naiad.transport.grpc.fast_path import Reader
from naiad.transport.grpc.message import PREFIX_BYTES, Buffer, Message, MessageReader
from naiad.transport.grpc.method import MessageStream, Method, RequestHead
from naiad.transport.grpc.ordered_work import OrderedWork
from naiad.transport.grpc.status import (
    GZIP_RESPONSE_HEADERS,
    OK_TRAILERS,
    RESPONSE_HEADERS,
    STATUS,
    Fields,
    GrpcError,
    Status,
    memory_full,
    retry_fields,
    trailers,
    trailers_only,
)
from naiad.transport.http2.limits import MIB
from naiad.transport.http2.sender import NoMemoryError, SlowReaderError
from naiad.transport.http2.stream import CLOSED, Stream

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from naiad.core.identity import Identity
    from naiad.keys.account import Admission
    from naiad.transport.grpc.protocol import GrpcProtocol

CONGESTED_BYTES: Final = 1 * MIB
_prefix: Final = struct.Struct(">BI").pack


class Call:
    __slots__ = (
        "_compression",
        "_decompression",
        "_has_sent_headers",
        "_is_congested",
        "_is_received",
        "_protocol",
        "_stream",
        "_timer",
        "admission",
        "deadline_ns",
        "handler",
        "head",
        "held_bytes",
        "is_done",
        "method",
        "on_broken",
        "on_cancel",
        "on_flow",
        "on_stop",
        "reader",
        "refusal",
    )

    def __init__(
        self,
        protocol: GrpcProtocol,
        stream: Stream,
        head: RequestHead,
        method: Method,
        admission: Admission | None = None,
    ) -> None:
        self._protocol = protocol
        self._stream = stream
        self.head = head
        self.method = method
        self.admission = admission
        """The owner of the call and what it may use; of a stream, the admission of the message that
        is being handled. None where nobody needs a key."""
        self.is_done = False
        self.held_bytes = 0
        """Bytes charged to the connection's account until the call ends."""
        self.deadline_ns = 0
        """The deadline on the monotonic clock; 0 when there is none."""
        self.on_cancel: Callable[[], None] | None = None
        """Called at most once, when the client resets the call, its connection ends, or its
        deadline passes."""
        self.on_broken: Callable[[], None] | None = None
        """Called when a call with a stream of requests ends with another status than OK: requests
        may have been lost."""
        self.on_flow: Callable[[bool], None] | None = None
        """Called with True when the client reads more slowly than we send, with False when it has
        caught up."""
        self.on_stop: Callable[[], None] | None = None
        """Called when the server stops. A call that has nothing in flight must end then."""
        self.refusal: NaiadError | None = None
        """The guard has refused the call, which ends when its message tells what it was for."""
        self._is_congested = False
        self.handler: MessageStream | None = None
        self.reader: Reader | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_received = False
        self._has_sent_headers = False
        self._decompression: OrderedWork | None = None
        self._compression: OrderedWork | None = None

    def start(self, now_ns: int) -> None:
        """Needed only for calls that have a deadline or stream their requests."""
        timeout_ns = self.head.timeout_ns
        if timeout_ns >= 0:
            self.deadline_ns = now_ns + timeout_ns
            self._timer = self._protocol.loop.call_later(timeout_ns / 1e9, self._expire)
        if self.method.stream is not None:
            self.handler = self.method.stream(self)
            self.on_cancel = self.handler.on_cancel

    @property
    def receive_start_ns(self) -> int:
        """When the message that is being handled began to arrive; 0 when it arrived in one
        piece."""
        return 0 if self.reader is None else self.reader.start_ns

    @property
    def connection(self) -> object:
        """The identity of the client connection, for limits per connection."""
        return self._protocol

    @property
    def peer(self) -> BaseTransport | None:
        """The client's side of the connection; None if it is gone."""
        return self._protocol.peer

    @property
    def is_message_due(self) -> bool:
        return self.handler is None and not self._is_received and self._decompression is None

    @property
    def is_idle(self) -> bool:
        return self.handler is not None and self.handler.is_idle

    @property
    def trace_name(self) -> str:
        return "GRPC"

    @property
    def identity(self) -> Identity | None:
        return None if self.admission is None else self.admission.identity

    def header(self, name: str) -> str:
        """The value of a metadata entry; empty when the client did not send it."""
        return self.head.metadata.get(name, "")

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """The callback runs if the call is cancelled before it has ended."""
        if not self.is_done:
            self.on_cancel = callback

    @property
    def account(self) -> MemoryAccount:
        """What the connection holds for requests and responses."""
        return self._protocol.account

    # Requests; called by the protocol.

    def refuse(self, beginning: Buffer, *, is_compressed: bool = False) -> None:
        """Ends a call that the guard has refused."""
        assert self.refusal is not None
        self.lose(beginning, is_compressed=is_compressed)
        self.finish(STATUS[self.refusal.code], self.refusal.message, retry_fields(self.refusal))

    def lose(self, message: Buffer, *, is_compressed: bool = False) -> None:
        """The message, of which this may be the beginning, does not get to its handler."""
        on_lost = self.method.on_lost
        if on_lost is None or not len(message):
            return
        identity, gate = self.identity, self.head.gate
        if identity is None and gate is not None:
            owner = gate.check(self.peer)
            if isinstance(owner, NaiadError):
                return
            identity = owner.identity
        on_lost(self.head, message, identity, is_compressed)

    def receive(self, messages: list[Message], end_stream: bool) -> None:
        for is_compressed, message in messages:
            if self.is_done:
                return
            if is_compressed:
                self._decompress(message)
            elif self._decompression is not None:
                self._decompression.then(partial(self._on_late_message, message))
            else:
                self.on_message(message)
        if end_stream and not self.is_done:
            if self.reader is not None and not self.reader.is_empty:
                self.finish(Status.INTERNAL, "the request ends inside a message")
            elif self._decompression is not None:
                self._decompression.then(self._on_end)
            else:
                self._on_end()

    def on_message(self, message: Buffer) -> None:
        """Handles one request message, decompressed."""
        try:
            if self.handler is not None:
                gate = self.head.gate
                entrance = None if gate is None else gate.enter(self.peer)
                if isinstance(entrance, NaiadError):
                    self.admission = None
                    self.handler.on_refusal(message, entrance)
                    return
                self.admission = entrance
                self.handler.on_message(message)
            elif self._is_received:
                self.finish(
                    Status.INTERNAL, "more than one message was sent to a method that takes one"
                )
            else:
                self._is_received = True
                if self.refusal is not None:
                    self.refuse(message)
                    return
                if len(message) <= SMALL_BYTES:
                    if not self.account.charge(len(message)):
                        raise memory_full()
                    self.held_bytes += len(message)
                unary = self.method.unary
                assert unary is not None
                unary(self, message)
        except GrpcError as error:
            self.lose(message)
            self.finish(error.status, error.message, error.fields)
        except Exception:
            self.lose(message)
            self.fail_unexpectedly()

    def _on_late_message(self, message: Buffer, _: None) -> None:
        if not self.is_done:
            self.on_message(message)

    def _on_end(self, _: None = None) -> None:
        if self.is_done:
            return
        if self.handler is None:
            if not self._is_received:
                self.finish(Status.INTERNAL, "no message was sent to a method that takes one")
            return
        try:
            self.handler.on_half_close()
        except Exception:
            self.fail_unexpectedly()

    def fail_unexpectedly(self) -> None:
        """Must be called while an exception is handled that no handler should raise."""
        log.error(f"gRPC: the handler of {self.method.path} failed: {format_exc()}")
        self.finish(Status.INTERNAL, "internal error")

    def _decompress(self, message: Buffer) -> None:
        encoding = self.head.encoding
        if encoding == "identity":
            self.finish(Status.INTERNAL, "a compressed message was sent without grpc-encoding")
            return
        if self._decompression is None:
            self._decompression = OrderedWork(
                self._protocol.loop, partial(self._fail_compressed, bytes(message[:SMALL_BYTES]))
            )
        # The compressed message is counted too, but only until it is decompressed.
        job = partial(
            self.account.produce,
            partial(decompress, message, encoding, self._protocol.options.max_message_bytes),
        )
        self._decompression.submit(
            job,
            lambda data: self._on_late_message(data, None),
            is_small=len(message) <= INLINE_BYTES // 8,
        )

    def pause_requests(self) -> None:
        """The peer may still use up its window, then must wait for `resume_requests`."""
        self._protocol.connection.pause(self._stream)

    def resume_requests(self) -> None:
        if not self.is_done:
            self._protocol.connection.resume(self._stream)
            self._protocol.flush_soon()

    # Responses.

    def reply(self, pieces: list[Buffer], num_bytes: int) -> None:
        """Sends the single response message of a unary method, and status OK. `num_bytes` is the
        total of `pieces`."""
        if self.is_done:
            return
        if self._has_sent_headers or self._gzip_level(num_bytes):
            self.send(pieces, num_bytes)
            self.finish(Status.OK)
            return
        fields = () if self.admission is None else self.admission.trailer_fields()
        self._end(Status.OK)
        if self._stream.state == CLOSED:
            return
        try:
            self._protocol.sender.response(
                self._stream,
                RESPONSE_HEADERS,
                [_prefix(0, num_bytes), *pieces],
                num_bytes + PREFIX_BYTES,
                trailers(Status.OK, "", fields) if fields else OK_TRAILERS,
            )
        except SlowReaderError:
            self._protocol.drop_slow_reader(self._stream)
        except NoMemoryError:
            error = memory_full()
            block = trailers_only(error.status, error.message, error.fields)
            self._protocol.sender.headers(self._stream, block, end_stream=True)
        self._protocol.flush_soon()

    def send(self, pieces: list[Buffer], num_bytes: int) -> None:
        """Sends one response message of several. A slow reader is cancelled, so this may end the
        call."""
        if self.is_done:
            return
        level = self._gzip_level(num_bytes)
        if level:
            if self._compression is None:
                self._compression = OrderedWork(self._protocol.loop, self._fail)
            self._compression.submit(
                partial(compress_gzip, pieces, level),
                self._send_compressed,
                is_small=num_bytes <= INLINE_BYTES // 8,
            )
        elif self._compression is not None:
            self._compression.then(lambda _: self._send_message(0, pieces, num_bytes))
        else:
            self._send_message(0, pieces, num_bytes)

    def finish(self, status: int, message: str = "", fields: Fields = ()) -> None:
        """Ends the call, after the messages that were sent before. `fields` are further
        trailers."""
        if self.is_done:
            return
        if self.admission is not None and self.admission.is_undecided:
            self.admission.decide(
                lambda refusal: self._finish_decided(refusal, status, message, fields)
            )
        elif self._compression is not None and status == Status.OK:
            self._compression.then(lambda _: self._finish(status, message, fields))
        else:
            self._finish(status, message, fields)

    def _finish_decided(
        self, refusal: NaiadError | None, status: int, message: str, fields: Fields
    ) -> None:
        if refusal is None:
            self.finish(status, message, fields)
        else:
            self.admission = None
            self.finish(STATUS[refusal.code], refusal.message, retry_fields(refusal))

    def _fail(self, error: GrpcError) -> None:
        self.finish(error.status, error.message, error.fields)

    def _fail_compressed(self, message: bytes, error: GrpcError) -> None:
        """A call has one message, or is a stream, which loses all of them when it ends."""
        self.lose(message, is_compressed=True)
        self._fail(error)

    def _gzip_level(self, num_bytes: int) -> int:
        level = self._protocol.gzip_level
        return level if level and num_bytes >= MIN_COMPRESSED_BYTES and self._may_compress() else 0

    def _may_compress(self) -> bool:
        return self.head.accepts_gzip and self.method.is_compressed

    def _send_compressed(self, data: bytes) -> None:
        self._send_message(1, [data], len(data))

    def _send_message(self, flag: int, pieces: list[Buffer], num_bytes: int) -> None:
        if self.is_done or self._stream.state == CLOSED:
            return
        sender = self._protocol.sender
        if not self._has_sent_headers:
            self._has_sent_headers = True
            is_gzip = self._protocol.gzip_level and self._may_compress()
            sender.headers(self._stream, GZIP_RESPONSE_HEADERS if is_gzip else RESPONSE_HEADERS)
        try:
            sender.data(self._stream, [_prefix(flag, num_bytes), *pieces], num_bytes + PREFIX_BYTES)
        except SlowReaderError:
            self._protocol.drop_slow_reader(self._stream)
            self.cancel()
        except NoMemoryError:
            error = memory_full()
            self.abort(error.status, error.message, error.fields)
        if (
            self._stream.pending_bytes > CONGESTED_BYTES
            and self.on_flow is not None
            and not self._is_congested
        ):
            self._is_congested = True
            self._stream.on_drained = self._drained
            self.on_flow(True)
        self._protocol.flush_soon()

    def _drained(self) -> None:
        self._protocol.loop.call_soon(self._resume_responses)

    def _resume_responses(self) -> None:
        if not self.is_done and self.on_flow is not None:
            self._is_congested = False
            self.on_flow(False)

    def _finish(self, status: int, message: str, fields: Fields = ()) -> None:
        if self.is_done:
            return
        self._end(status)
        stream = self._stream
        if stream.state == CLOSED:
            return
        sender = self._protocol.sender
        if self._has_sent_headers:
            sender.trailers(stream, trailers(status, message, fields))
        else:
            sender.headers(stream, trailers_only(status, message, fields), end_stream=True)
        self._protocol.flush_soon()

    # Ends.

    def cancel(self) -> None:
        """The client is gone: nothing can be sent any more."""
        if self.is_done:
            return
        callback = self.on_cancel
        self._end(Status.CANCELLED)
        if callback is not None:
            callback()

    def abort(self, status: Status, message: str, fields: Fields = ()) -> None:
        """Ends the call with a status and cancels its work."""
        if self.is_done:
            return
        callback = self.on_cancel
        self._finish(status, message, fields)
        if callback is not None:
            callback()

    def abort_provoked(self, status: Status, message: str, fields: Fields = ()) -> None:
        """Like `abort`, when a fault of the client's cancels work of the same call that is in
        flight. This costs us as much as a reset by the client, and is metered alike."""
        stream, was_done = self._stream, self.is_done
        self.abort(status, message, fields)
        if not was_done:
            self._protocol.on_provoked_end(stream)

    def stop(self) -> None:
        if self.handler is not None:
            self.handler.on_stop()
        elif self.on_stop is not None:
            self.on_stop()

    def _expire(self) -> None:
        self.abort(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _end(self, status: int) -> None:
        self.is_done = True
        if status != Status.OK and isinstance(self.reader, MessageReader):
            self.lose(self.reader.beginning(), is_compressed=self.reader.is_compressed)
        if status != Status.OK and self.on_broken is not None:
            self.on_broken()
        # The admissions of a stream belong to its messages.
        if self.admission is not None and self.method.stream is None:
            self.admission.end(status)
        self.on_broken = self.on_cancel = self.on_flow = self.on_stop = None
        self.handler = None
        self._stream.context = None
        self._stream.sink = None
        if self._timer is not None:
            self._timer.cancel()
        if self.reader is not None:
            self.reader.release()
        if self.held_bytes:
            self.account.release(self.held_bytes)
            self.held_bytes = 0
        if self._decompression is not None:
            self._decompression.cancel()
        if self._compression is not None:
            self._compression.cancel()
