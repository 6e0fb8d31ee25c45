"""One request and its response: what a handler sees of an HTTP/1.1 connection.

In:  Http1Connection makes an exchange when the whole request has arrived and calls
     `handle(exchange)` at once.
Out: exactly one of `respond` (or `respond_parts`), or `start_stream`, `send_chunk`...,
     `end_stream`; now or later, on the event loop.
Rule: after the client is gone every call here is accepted and does nothing; the callback given to
      `on_disconnect` is called when that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from naiad.core.memory_budget import FULL_MESSAGE, RETRY_AFTER_S, MemoryAccount
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, unavailable
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import (
    JSON_TYPE,
    LAST_CHUNK,
    RETRY_SOON,
    error_body,
    render_head,
    render_special_head,
)

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from naiad.core.identity import Identity
    from naiad.keys.account import Admission
    from naiad.transport.http1.fast_path import FastPath
    from naiad.transport.http1.response_queue import ResponseQueue

CLIENT_GONE = 499
"""The status of a request whose client left before the response, as proxies log it."""
_JOIN_BYTES = 64 * 1024
"""The parts of a smaller response are copied together: one small copy is cheaper than a scattered
write."""


class Exchange:
    __slots__ = (
        "_is_chunked",
        "_on_disconnect",
        "_on_flow",
        "_on_stop",
        "_responses",
        "_status",
        "admission",
        "body",
        "head",
        "held_bytes",
        "is_ended",
        "is_started",
        "receive_start_ns",
        "request_id",
        "should_close",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, responses: ResponseQueue | None, head: Head, body: Buffer) -> None:
        self.head = head
        self.body = body
        self.held_bytes = 0
        """Bytes charged to the connection's account until the exchange ends."""
        self.receive_start_ns = 0
        """When the first byte of the body arrived, on the monotonic clock; 0 when the request
        arrived in one piece."""
        self.is_started = False
        self.is_ended = False
        self.should_close = False
        """The response ends the connection."""
        self.waiting: list[Buffer] | None = None
        """Output that may not be written yet: an earlier request of the connection still waits for
        its response."""
        self.waiting_bytes = 0
        self.admission: Admission | None = None
        """The owner of the request and what it may use; None where nobody needs a key."""
        self.request_id = ""
        """An id that the response names, where the handler has made one."""
        self._status = 0
        """The status of a stream that has started."""
        self._responses: ResponseQueue | None = responses
        self._on_disconnect: Callable[[], None] | None = None
        self._on_flow: Callable[[bool], None] | None = None
        self._on_stop: Callable[[NaiadError], None] | None = None
        self._is_chunked = False

    # Called by the handler.

    @property
    def trace_name(self) -> str:
        return "HTTP"

    @property
    def identity(self) -> Identity | None:
        return None if self.admission is None else self.admission.identity

    @property
    def peer(self) -> BaseTransport | None:
        """The client's side of the connection; None if it is gone."""
        return None if self._responses is None else self._responses.peer

    def header(self, name: str) -> str:
        """The value of a header by its lower-case name; empty when the client did not send it."""
        return self.head.headers.get(name.encode(), b"").decode("latin-1")

    def respond(self, status: int, headers: bytes, body: Buffer = b"") -> None:
        self.respond_parts(status, headers, [body], len(body))

    def respond_parts(self, status: int, headers: bytes, parts: list[Buffer], size: int) -> None:
        """`size` is the sum of the parts' sizes. Large parts are written without a copy: the
        exchange keeps them alive until then."""
        responses = self._responses
        if responses is None or self.is_started:
            return
        if size >= _JOIN_BYTES and not responses.account.fits(size):
            self.respond_error(503, FULL_MESSAGE, RETRY_SOON)
            return
        admission = self.admission
        if admission is not None:
            if admission.is_undecided:
                admission.decide(
                    lambda refusal: self._respond_decided(refusal, status, headers, parts, size)
                )
                return
            headers += admission.header_lines()
            admission.end(status)
        if self.request_id:
            headers += self._id_line()
        self.is_started = self.is_ended = True
        if self.head.is_plain and not responses.is_stopping:
            rendered = render_head(status, headers, size)
        else:
            self.should_close = responses.is_stopping or not self.head.keep_alive
            rendered = render_special_head(
                self.head, status, headers, size, should_close=self.should_close
            )
            if self.head.is_head:
                parts, size = [], 0
        if size < _JOIN_BYTES:
            responses.send(self, b"".join((rendered, *parts)))
        else:
            responses.send_parts(self, [rendered, *(part for part in parts if len(part))], size)

    def _respond_decided(
        self,
        refusal: NaiadError | None,
        status: int,
        headers: bytes,
        parts: list[Buffer],
        size: int,
    ) -> None:
        if refusal is None:
            self.respond_parts(status, headers, parts, size)
        else:
            self.admission = None
            self.head.route.refuse(self, refusal)

    def respond_rendered(self, parts: Sequence[Buffer], status: int = 200) -> bool:
        """`parts` are a whole response, head included. False: nothing has happened, because this
        response needs a head of its own."""
        responses = self._responses
        if responses is None or self.is_started:
            return True
        if not self.head.is_plain or responses.is_stopping:
            return False
        self.is_started = self.is_ended = True
        if self.admission is not None:
            parts = with_header_lines(parts, self.admission.header_lines())
            self.admission.end(status)
        responses.send(self, b"".join(parts))
        return True

    def respond_error(self, status: int, message: str, headers: bytes = b"") -> None:
        self.respond(status, JSON_TYPE + headers, error_body(message))

    def start_stream(self, status: int, headers: bytes, size: int | None = None) -> None:
        """`size` is the number of bytes of all chunks together, where it is known."""
        responses = self._responses
        if responses is None or self.is_started:
            return
        self.is_started = True
        self.should_close = (
            responses.is_stopping
            or not self.head.keep_alive
            or (self.head.is_http10 and size is None)
        )
        self._is_chunked = size is None and not self.head.is_http10 and not self.head.is_head
        self._status = status
        if self.admission is not None:
            headers += self.admission.header_lines()
        if self.request_id:
            headers += self._id_line()
        responses.send(
            self,
            render_special_head(self.head, status, headers, size, should_close=self.should_close),
        )

    def _id_line(self) -> bytes:
        return b"X-Request-Id: %b\r\n" % self.request_id.encode()

    def send_chunk(self, data: bytes) -> None:
        responses = self._responses
        if responses is None or self.is_ended or not data or self.head.is_head:
            return
        responses.send(self, b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end_stream(self) -> None:
        responses = self._responses
        if responses is None or self.is_ended:
            return
        self.is_ended = True
        if self.admission is not None:
            self.admission.end(self._status)
        responses.send(self, LAST_CHUNK if self._is_chunked else b"")

    def break_stream(self) -> None:
        """Ends the connection without the end of the response, so that the client sees that the
        response is not complete."""
        responses = self._responses
        if responses is None or self.is_ended:
            return
        self.is_ended = self.should_close = True
        if self.admission is not None:
            self.admission.end(self._status)
        responses.send(self, b"")

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """`callback` is called once, as soon as the client closes or resets the connection before
        the response is complete."""
        if self.is_disconnected:
            callback()
        elif not self.is_ended:
            self._on_disconnect = callback

    def on_flow(self, callback: Callable[[bool], None]) -> None:
        """`callback` is called with True when the client does not keep up with a stream, and with
        False when it does again."""
        self._on_flow = callback

    def on_stop(self, callback: Callable[[NaiadError], None]) -> None:
        """`callback` ends a stream that has begun with an error, when the server does not wait for
        its end."""
        self._on_stop = callback

    @property
    def peer_host(self) -> str:
        """The address of the client; empty after it is gone."""
        peer = None if self._responses is None else self._responses.peer
        name = None if peer is None else peer.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""

    @property
    def account(self) -> MemoryAccount | None:
        """The account of the connection; None after the client is gone."""
        return None if self._responses is None else self._responses.account

    def hold(self, num_bytes: int) -> None:
        """Counts memory of this size until the exchange ends. Raises NaiadError when the server
        holds too much already."""
        responses = self._responses
        if responses is None:
            return
        if not responses.account.charge(num_bytes):
            raise unavailable(FULL_MESSAGE, RETRY_AFTER_S)
        self.held_bytes += num_bytes

    def leave(self) -> bool:
        """Another process serves the request: the connection goes there, with the whole request.
        Returns False if that is not possible, because the connection has more requests under
        way after this one."""
        responses = self._responses
        return responses is None or responses.give_back(self)

    def set_fast_path(self, fast_path: FastPath) -> None:
        """The next request of the connection may repeat this one."""
        if self._responses is not None:
            self._responses.fast_path = fast_path

    @property
    def is_disconnected(self) -> bool:
        return self._responses is None and not self.is_ended

    # Called by the connection.

    def detach(self) -> None:
        """The response has been written to the transport."""
        if self._responses is not None:
            self._responses.account.release(self.held_bytes)
            self.held_bytes = 0
        self._responses = None
        self._on_disconnect = self._on_flow = self._on_stop = None

    def cut_short(self, error: NaiadError) -> None:
        """The server does not wait for the end of the response: the client gets the error, and the
        work is cancelled."""
        cancel, stop = self._on_disconnect, self._on_stop
        if not self.is_started:
            self.head.route.refuse(self, error)
        elif stop is not None:
            stop(error)
        else:
            self.break_stream()
        if cancel is not None:
            cancel()

    def set_flow(self, *, is_paused: bool) -> None:
        if self._on_flow is not None:
            self._on_flow(is_paused)

    def disconnect(self) -> None:
        if self._responses is not None:
            self._responses.account.release(self.held_bytes)
            self.held_bytes = 0
        self._responses = None
        self.body = b""
        self.waiting = None
        self._on_flow = self._on_stop = None
        callback, self._on_disconnect = self._on_disconnect, None
        if callback is not None and not self.is_ended:
            callback()
        if self.admission is not None:
            self.admission.end(CLIENT_GONE)


def with_header_lines(parts: Sequence[Buffer], lines: bytes) -> Sequence[Buffer]:
    """`parts` are a whole response. Puts the lines after the status line."""
    if not lines:
        return parts
    first = bytes(parts[0])
    start = first.index(b"\r\n") + 2
    return [first[:start], lines, first[start:], *parts[1:]]
