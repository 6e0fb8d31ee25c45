"""One HTTP/1.1 connection on the event loop: bytes -> exchanges, and the connection's deadlines.

In:  bytes from the socket, through get_buffer/buffer_updated: small requests through a scratch
     buffer that all connections share, large bodies straight into the memory that is used later.
Out: `head.route.handle(exchange)` once per request, on the stack of the read; no task, no future
     and no timer per request. A request that repeats the last one goes to the fast path instead.
Rule: a connection that breaks the protocol gets one error response, after the responses before it,
      and is then drained and closed.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from naiad import log
from naiad.core.memory_budget import FULL_MESSAGE, RETRY_AFTER_S
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, oversize_body, unavailable
from naiad.transport.http1.body import ChunkedBody, FixedBody, LostBody, SkippedBody
from naiad.transport.http1.chunked import BodyTooLargeError, ChunkError
from naiad.transport.http1.exchange import CLIENT_GONE, Exchange
from naiad.transport.http1.fast_path import FastPath
from naiad.transport.http1.head import BROKEN, Head, HeadError
from naiad.transport.http1.response_head import CONTINUE, RETRY_SOON
from naiad.transport.http1.response_queue import ResponseQueue
from naiad.transport.tcp_watch import discard
from naiad.transport.write_watch import Verdict, WriteWatch

if TYPE_CHECKING:
    from naiad.keys.account import Admission
    from naiad.transport.http1.endpoint import Http1Endpoint

STOPPING = "the server is shutting down"
_HEAD_END = b"\r\n\r\n"
_MAX_LINGER_BYTES = 1 << 30
_STAYS = 1 << 30
"""More moves than any limit: the connection stays where it goes."""
_UNSENT_POLL_S = 0.005
"""How soon a connection that is about to move looks again whether its responses have been sent."""


class Http1Connection(asyncio.BufferedProtocol):
    __slots__ = (
        "_account",
        "_admission",
        "_body",
        "_body_bytes",
        "_endpoint",
        "_fixed_body",
        "_given_back",
        "_has_continue_due",
        "_has_dispatched",
        "_heads",
        "_is_broken",
        "_is_draining",
        "_is_parsing",
        "_is_reading_paused",
        "_is_waiting",
        "_limits",
        "_lost",
        "_pending",
        "_pending_bytes",
        "_received_bytes",
        "_responses",
        "_scratch",
        "_since_s",
        "_transport",
        "_watch",
        "_watched_since_s",
        "must_leave",
        "num_moves",
        "wrap_transport",
    )

    _transport: asyncio.Transport
    _responses: ResponseQueue

    def __init__(self, endpoint: Http1Endpoint) -> None:
        self._endpoint = endpoint
        self._limits = endpoint.limits
        self._heads = endpoint.heads
        self._scratch = endpoint.scratch
        self._account = endpoint.budget.open_account()
        self._body_bytes = 0
        """Bytes of `_body` that are charged to the account."""
        self._pending_bytes = 0
        """Bytes of `_pending`, as they were last counted."""
        self._pending = b""
        """Received and not parsed yet: the beginning of a request, or requests that wait until
        earlier ones have ended."""
        self._admission: Admission | None = None
        """The admission of the request whose body is being received."""
        self._body: FixedBody | ChunkedBody | SkippedBody | None = None
        self._lost: LostBody | None = None
        """What is being drained is the rest of this body."""
        self._fixed_body: FixedBody | None = None
        """Equal to `_body` while the socket fills it directly."""
        self._given_back = b""
        """A request that another process must serve, while the rest of a read is parsed."""
        self._has_continue_due = False
        self._has_dispatched = False
        """A request has arrived on this connection."""
        self._is_parsing = False
        self._is_draining = False
        """Everything that the client still sends is ignored."""
        self._is_broken = False
        """The request could not be received, and the rest of it may still be on its way."""
        self._is_reading_paused = False
        self._is_waiting = False
        """`_pending` is parsed in a later turn of the event loop."""
        self._received_bytes = 0
        """Bytes of the request that is being received (at least 1), or of what is being drained; 0
        between requests."""
        self._since_s = endpoint.now_s
        """The time when the connection became idle, began to receive a request, or began to
        drain."""
        self._watch: WriteWatch | None = None
        """None before the first sweep that had something to look at."""
        self._watched_since_s = -1.0
        """The time at which an idle connection became idle whose client has acknowledged all."""
        self.num_moves = 0
        """How often the connection has moved to another process."""
        self.must_leave = False
        """Another process must serve the next request, and knows what to do with it."""
        self.wrap_transport: Callable[[asyncio.BaseTransport], asyncio.Transport] | None = None
        """Set where another process has the client's side of the connection."""

    def resume_after_move(self, data: bytes, num_moves: int) -> None:
        """Another process had the connection, and has received `data` without handling it. Must be
        called before `connection_made`."""
        self._pending = data
        self._has_dispatched = True
        self.num_moves = num_moves

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wrap = self.wrap_transport
        self._transport = cast(asyncio.Transport, transport) if wrap is None else wrap(transport)
        self._responses = ResponseQueue(
            self,
            self._transport,
            self._endpoint.flush_scheduler,
            self._limits.max_stream_buffer_bytes,
            self._account,
        )
        reason = self._endpoint.admit(self)
        if reason is not None:
            if self._endpoint.is_flooded:
                self.abort()
            else:
                self._refuse(503, reason, RETRY_SOON)
        elif self._pending:
            self._note_receiving()
            self._resume()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._lose_body()
        self._drop_body()
        self._end_admission()
        self._is_draining = True
        self._endpoint.forget(self)
        self._responses.close()
        self._pending = b""
        self._lost = None
        self.count_memory()

    def eof_received(self) -> bool:
        """A client that closes its side gets no more responses: Triton's clients never half-close,
        and cancelling at once matters more."""
        self._is_draining = True
        self._responses.flush()
        self._responses.disconnect()
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._fixed_body
        return self._scratch if body is None else body.rest

    def buffer_updated(self, nbytes: int) -> None:
        if self._fixed_body is not None:
            self._received_bytes += nbytes
            is_complete = self._fixed_body.advance(nbytes)
            if not self._count_body(self._fixed_body):
                self._refuse(503, FULL_MESSAGE, RETRY_SOON)
            elif is_complete:
                self._end_body(self._fixed_body)
            return
        if self._is_draining:
            self._drain(nbytes)
            return
        data = self._scratch[:nbytes].tobytes()
        if self._pending:
            data = self._pending + data
            self._pending = b""
        responses = self._responses
        fast_path = responses.fast_path
        if (
            fast_path is not None
            and not responses.exchanges
            and not responses.is_paused
            and self._body is None
        ):
            if self._consume(fast_path, data):
                return
            if fast_path.is_head(data):
                # Many clients send head and body by two calls, and some reads fall in between: the
                # body is on its way.
                self._pending = data
                self._note_receiving()
                return
        self._parse(data)

    def pause_writing(self) -> None:
        self._responses.set_paused(is_paused=True)

    def resume_writing(self) -> None:
        self._responses.set_paused(is_paused=False)
        self._resume()

    # Requests.

    def _parse(self, data: bytes) -> None:
        """Handles as many whole requests of `data` as may be under way at once; keeps the rest."""
        self._is_parsing = True
        responses, endpoint = self._responses, self._endpoint
        start, size = 0, len(data)
        while start < size and not self._is_draining:
            if self._body is not None:
                start = self._continue_body(self._body, data, start)
                continue
            if len(responses.exchanges) >= self._limits.max_pipelined or responses.is_paused:
                self._hold(data[start:])
                break
            if endpoint.turn.is_over(endpoint.loop):
                self._wait(data[start:])
                break
            end = data.find(_HEAD_END, start)
            if end < 0:
                self._keep_partial_head(data[start:])
                break
            end += 4
            key = data[start:end]
            head = self._heads.get(key)
            if head is None:
                key = key.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request are ignored
                if not key:
                    start = end
                    # The clock of the next request begins with its empty lines: a client that sends
                    # nothing else must not keep the connection open.
                    self._note_receiving()
                    continue
                head = self._new_head(key)
                if head is None:
                    break
            if head.route.leaves is not None and head.route.leaves(self):
                self._leave(data[start:])
                break
            if head.route.gate is not None:
                admission = head.route.gate.enter(self._transport)
                if isinstance(admission, NaiadError):
                    start = self._refuse_entrance(head, admission, data, end)
                    continue
                self._admission = admission
            stop = end + head.content_length
            if stop > size or not head.is_inline:
                start = self._begin_body(head, data, end)
                continue
            start = stop
            responses.is_corked = start < size
            self._dispatch(head, data[end:stop])
        self._is_parsing = responses.is_corked = False
        if self._given_back:
            self._leave_given_back(self._given_back, data[start:])

    def _new_head(self, data: bytes) -> Head | None:
        try:
            return self._endpoint.read_head(data)
        except HeadError as error:
            self._refuse(error.status, error.message)
            return None

    def _keep_partial_head(self, data: bytes) -> None:
        limits = self._limits
        if len(data) > limits.max_head_bytes:
            if data.find(b"\r\n", 0, limits.max_target_bytes + 32) < 0:
                self._refuse(414, f"request target exceeds {limits.max_target_bytes} bytes")
            else:
                self._refuse(431, f"request head exceeds {limits.max_head_bytes} bytes")
            return
        self._pending = data
        self._note_receiving()

    def _note_receiving(self) -> None:
        """The receive deadline runs from the first byte of a request, not from the latest."""
        if self._received_bytes == 0:
            self._since_s = self._endpoint.now_s
            self._received_bytes = 1

    def _begin_body(self, head: Head, data: bytes, start: int) -> int:
        """Handles a request whose body is not wholly in `data`, or is too large to be copied from
        it. Returns the offset in `data` after the part that belongs to the body."""
        limits = self._limits
        max_bytes = head.route.body_limit(limits.max_body_bytes)
        if head.content_length > max_bytes:
            self._lose(head, data[start:])
            self._refuse_body(head, head.content_length, max_bytes)
            return len(data)
        self._note_receiving()
        body: FixedBody | ChunkedBody
        if head.is_chunked:
            body = ChunkedBody(head, max_bytes, limits.max_chunks, limits.large_body_bytes)
        else:
            if not self._account.fits(head.content_length):
                self._lose(head, data[start:])
                self._refuse(503, FULL_MESSAGE, RETRY_SOON)
                return len(data)
            try:
                body = FixedBody(head, limits.large_body_bytes)
            except MemoryError:
                self._lose(head, data[start:])
                self._refuse(503, "not enough memory for the request", RETRY_SOON)
                return len(data)
        self._body = body
        self._has_continue_due = head.expects_continue and start == len(data)
        start = self._continue_body(body, data, start)
        self._send_continue()
        return start

    def _lost_body(self, head: Head) -> LostBody:
        """For a request that does not get to its handler."""
        identity = None if self._admission is None else self._admission.identity
        if identity is None and head.route.on_lost is not None and head.route.gate is not None:
            owner = head.route.gate.check(self._transport)
            if owner is not None and not isinstance(owner, NaiadError):
                identity = owner.identity
        return LostBody(head, identity)

    def _lose(self, head: Head, received: Buffer) -> None:
        """The rest of the body may still tell what it was for."""
        self._lost = self._lost_body(head)
        self._lost.feed(received)

    def _lose_body(self) -> None:
        body = self._body
        if isinstance(body, FixedBody | ChunkedBody):
            self._lose(body.head, body.received())

    def _refuse_entrance(self, head: Head, error: NaiadError, data: bytes, start: int) -> int:
        """Responds before the body is read. A small body is skipped, so that the connection can be
        used again; any other ends the connection. Returns the offset in `data` after the part that
        belongs to the body."""
        is_small = head.content_length <= self._limits.large_body_bytes
        is_skipped = is_small and not head.is_chunked and not head.expects_continue
        if not is_skipped:
            self._abandon_request()
        self._endpoint.num_refused += 1
        exchange = Exchange(self._responses, head if is_skipped else BROKEN, b"")
        self._responses.exchanges.append(exchange)
        body = SkippedBody(head, self._lost_body(head))
        if not is_skipped:
            self._lose(head, data[start:])
        if is_skipped:
            self._note_receiving()
            if not head.keep_alive:
                self._is_draining = True
            start = body.feed(data, start)
            if body.is_complete:
                self._received_bytes = 0
            else:
                self._body = body
            self._responses.is_corked = start < len(data)
        head.route.refuse(exchange, error)
        return start if is_skipped else len(data)

    def _continue_body(
        self, body: FixedBody | ChunkedBody | SkippedBody, data: bytes, start: int
    ) -> int:
        try:
            start = body.feed(data, start)
        except BodyTooLargeError as error:
            assert isinstance(body, ChunkedBody)
            self._refuse_body(body.head, error.num_bytes, body.max_bytes)
            return len(data)
        except ChunkError as error:
            self._refuse(400, str(error))
            return len(data)
        if isinstance(body, SkippedBody):
            if body.is_complete:
                self._body = None
                self._received_bytes = 0
        elif not self._count_body(body):
            self._refuse(503, FULL_MESSAGE, RETRY_SOON)
            return len(data)
        elif body.is_complete:
            self._responses.is_corked = start < len(data)
            self._end_body(body)
        else:
            self._received_bytes = body.num_bytes + 1
            self._fixed_body = body if isinstance(body, FixedBody) else None
        return start

    def _count_body(self, body: FixedBody | ChunkedBody) -> bool:
        """Charges the bytes that have arrived. Returns False when they are refused."""
        num_bytes = body.num_bytes - self._body_bytes
        if not self._account.charge(num_bytes):
            return False
        self._body_bytes += num_bytes
        return True

    def _drop_body(self) -> None:
        self._body = self._fixed_body = None
        self._account.release(self._body_bytes)
        self._body_bytes = 0

    def _end_body(self, body: FixedBody | ChunkedBody) -> None:
        content = body.content()
        if isinstance(content, memoryview):
            self._account.hold(content, self._body_bytes)
            self._body_bytes = 0
        self._drop_body()
        self._has_continue_due = False
        self._dispatch(body.head, content, body.start_ns)

    def _dispatch(self, head: Head, body: Buffer, receive_start_ns: int = 0) -> None:
        """A small body is counted until its exchange ends, a large one until its memory is
        gone."""
        self._received_bytes = 0
        self._has_dispatched = True
        self._endpoint.num_requests += 1
        exchange = Exchange(self._responses, head, body)
        exchange.receive_start_ns = receive_start_ns
        if self._admission is not None:
            exchange.admission, self._admission = self._admission, None
        self._responses.exchanges.append(exchange)
        if not head.keep_alive:
            # The response ends the connection: everything after this request is ignored.
            self._is_draining = True
        if body.__class__ is bytes:
            if not self._account.charge(len(body)):
                if head.route.on_lost is not None:
                    head.route.on_lost(body, exchange.identity)
                exchange.respond_error(503, FULL_MESSAGE, RETRY_SOON)
                return
            exchange.held_bytes = len(body)
        try:
            head.route.handle(exchange)
        except Exception:
            log.error(
                f"the handler of {head.path.decode('latin-1')} failed: {traceback.format_exc()}"
            )
            if exchange.is_started:
                self.abort()
            else:
                exchange.respond_error(500, "internal error")

    def _consume(self, fast_path: FastPath, data: bytes) -> bool:
        received_bytes, self._received_bytes = self._received_bytes, 0
        try:
            if not fast_path.consume(self._responses, data):
                self._received_bytes = received_bytes
                return False
        except Exception:
            log.error(f"the fast path of an HTTP connection failed: {traceback.format_exc()}")
            responses = self._responses
            # The response to this request may still reach the failed fast path: no other request
            # may use it.
            responses.fast_path = None
            if responses.exchanges and not responses.exchanges[0].is_started:
                responses.exchanges[0].respond_error(500, "internal error")
            else:
                self.abort()
        self._endpoint.num_requests += 1
        return True

    # Requests that another process serves.

    @property
    def transport(self) -> asyncio.Transport:
        return self._transport

    @property
    def is_working(self) -> bool:
        """A request of the connection is under way."""
        return bool(self._responses.exchanges)

    def give_up(self) -> None:
        """Moves the connection before its next request."""
        self.must_leave = True
        self._responses.fast_path = None

    def _leave(self, data: bytes) -> None:
        """Moves the connection to another process once everything before `data` has been sent."""
        responses = self._responses
        responses.flush()
        if responses.exchanges:
            self._hold(data)  # on_idle continues
        elif self._transport.get_write_buffer_size():
            self._hold(data)
            asyncio.get_running_loop().call_later(_UNSENT_POLL_S, self._resume)
        else:
            self._is_draining = True
            if not self._is_reading_paused:
                self._transport.pause_reading()
            self._is_reading_paused = False  # nothing here may read any more
            self._endpoint.move(self, data)

    def on_given_back(self, exchange: Exchange) -> None:
        head, body = exchange.head, bytes(exchange.body)
        if head.is_chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        self.num_moves = _STAYS
        request = head.text + body
        if self._is_parsing:
            self._given_back = request
            self._is_draining = True  # until `_parse` has stopped
        else:
            rest, self._pending = self._pending, b""
            self._leave(request + rest)

    def _leave_given_back(self, request: bytes, rest: bytes) -> None:
        self._given_back = b""
        self._is_draining = False
        self._leave(request + rest)

    # Requests that wait for earlier ones.

    def _hold(self, data: bytes) -> None:
        self._pending = data
        if len(data) > self._limits.max_held_bytes and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _wait(self, data: bytes) -> None:
        """Leaves the rest to a later turn, so that other connections are served."""
        self._hold(data)
        if not self._is_waiting:
            self._is_waiting = True
            self._endpoint.turn.wait(self._on_turn)

    def _on_turn(self) -> None:
        self._is_waiting = False
        self._resume()

    def _resume(self) -> None:
        """Continues with the requests that were held back."""
        if self._is_parsing or self._responses.is_paused or self._is_draining:
            return
        if self._pending:
            data, self._pending = self._pending, b""
            self._parse(data)
        if self._is_reading_paused and len(self._pending) <= self._limits.max_held_bytes:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _send_continue(self) -> None:
        if self._has_continue_due and not self._responses.exchanges:
            self._has_continue_due = False
            self._responses.flush()
            self._transport.write(CONTINUE)

    # The end.

    def on_idle(self) -> None:
        if self._responses.is_stopping and self.is_idle:
            self.close()
            return
        if self._received_bytes == 0:
            self._since_s = self._endpoint.now_s
        elif self._has_only_empty_lines:  # they came after the request that has its response now
            self._pending = b""
            self._received_bytes = 0
            self._since_s = self._endpoint.now_s
        elif self._has_continue_due:
            self._send_continue()
        if self._pending or self._is_reading_paused:
            self._resume()

    def on_last_response(self) -> None:
        self._is_draining = True
        self._responses.disconnect()
        self._since_s = self._endpoint.now_s
        if not self._is_broken:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()

    def on_slow_reader(self) -> None:
        self._endpoint.faults["slow_reader"] += 1
        self._endpoint.num_slow_readers += 1
        self._discard()

    def _refuse(self, status: int, message: str, headers: bytes = b"") -> None:
        """Sends an error response after the responses before it, then closes. The connection keeps
        reading for a while so that the client sees the response."""
        self._abandon_request()
        self._endpoint.num_refused += 1
        exchange = Exchange(self._responses, BROKEN, b"")
        self._responses.exchanges.append(exchange)
        exchange.respond_error(status, message, headers)

    def _refuse_body(self, head: Head, num_bytes: int, max_bytes: int) -> None:
        route = head.route
        message = route.oversize_message
        if message is None or route.max_body_bytes not in (None, max_bytes):
            self._refuse(400, oversize_body(num_bytes, max_bytes).message)
        else:
            self._refuse(400, message(num_bytes, max_bytes))

    def _end_admission(self) -> None:
        """The request ends before it has an exchange."""
        if self._admission is not None:
            self._admission.end(CLIENT_GONE)
            self._admission = None

    def _abandon_request(self) -> None:
        self._lose_body()
        self._drop_body()
        self._end_admission()
        self._has_continue_due = False
        self._pending = b""
        self._is_draining = self._is_broken = True
        self._received_bytes = 0
        self._since_s = self._endpoint.now_s

    def _drain(self, nbytes: int) -> None:
        self._received_bytes += nbytes
        if self._lost is not None:
            self._lost.feed(self._scratch[:nbytes])
        if self._received_bytes > _MAX_LINGER_BYTES:
            self.abort()

    @property
    def is_idle(self) -> bool:
        return not self._responses.exchanges and self._has_only_empty_lines

    def stop(self) -> None:
        """Closes when the requests under way have ended."""
        self._responses.is_stopping = True
        if self.is_idle:
            self.close()

    def refuse_partial_request(self) -> None:
        """The server stops, and the rest of a request has not arrived."""
        if not (self._is_draining or self._has_only_empty_lines):
            self._refuse(503, STOPPING, RETRY_SOON)

    def abort_if_done(self) -> None:
        """The server stops: a client that has its last response has had time to close."""
        if not self._responses.exchanges and not self._transport.get_write_buffer_size():
            self.abort()

    def cut_short(self) -> None:
        """The server stops, and does not wait any longer for the requests under way."""
        for exchange in list(self._responses.exchanges):
            if not exchange.is_ended:
                exchange.cut_short(unavailable(STOPPING, RETRY_AFTER_S))
        self._responses.flush()

    def close(self) -> None:
        """Closes after the transport has sent what was written."""
        self._is_draining = True
        self._responses.flush()
        self._transport.close()

    def abort(self) -> None:
        self._is_draining = True
        self._responses.disconnect()
        self._transport.abort()

    # Called once per sweep of the endpoint.

    def count_memory(self) -> None:
        """Counts what is neither part of an exchange nor of a body, and gives back what the account
        has reserved for nothing."""
        self._responses.count_unsent()
        self._account.add(len(self._pending) - self._pending_bytes)
        self._pending_bytes = len(self._pending)
        self._account.settle()

    def check_deadlines(self, now_s: float) -> None:
        limits = self._limits
        has_unsent = self._transport.get_write_buffer_size() > 0
        if not self._client_reads(now_s, has_unsent=has_unsent):
            return
        if has_unsent:
            if self._received_bytes == 0:
                self._since_s = now_s
            if self._is_draining or not self._received_bytes:
                return
        waited_s = now_s - self._since_s
        if self._is_draining:
            if not self._responses.exchanges and waited_s > limits.linger_timeout_s:
                self.abort()
        elif self._received_bytes:
            if (
                waited_s
                > limits.receive_timeout_s + self._received_bytes / limits.min_receive_bytes_per_s
            ):
                self._on_receive_timeout()
        elif self.is_idle and waited_s > (
            limits.keep_alive_timeout_s if self._has_dispatched else limits.receive_timeout_s
        ):
            self._endpoint.faults["idle_timeout"] += 1
            self.close()

    def _on_receive_timeout(self) -> None:
        if not self._has_only_empty_lines:
            self._endpoint.faults["request_timeout"] += 1
            self._refuse(408, "the request was not received in time")
        elif not self._responses.exchanges:
            # Some clients send an empty line after a body: they have no request under way, and
            # would read an error as the response to their next one.
            self._endpoint.faults["idle_timeout"] += 1
            self.close()

    @property
    def _has_only_empty_lines(self) -> bool:
        return self._body is None and not self._pending.strip(b"\r\n")

    def _client_reads(self, now_s: float, *, has_unsent: bool) -> bool:
        """Ends the connection of a client that is gone, or that reads nothing for too long."""
        is_idle = not has_unsent and not self._responses.exchanges
        if is_idle and self._watched_since_s == self._since_s:
            return True
        watch = self._watch
        if watch is None:
            watch = self._watch = WriteWatch(self._transport)
        elif not has_unsent and not watch.is_due(now_s):
            return True
        verdict = watch.look(now_s, self._limits.write_timeout_s)
        if is_idle and watch.is_clean:
            self._watched_since_s = self._since_s
        if verdict is Verdict.READS:
            return True
        if verdict is Verdict.SLOW:
            self.on_slow_reader()
        else:
            self._endpoint.faults["vanished"] += 1
            self._discard()
        return False

    def _discard(self) -> None:
        self._is_draining = True
        self._responses.disconnect()
        discard(self._transport)
