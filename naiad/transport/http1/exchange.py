"""One request and its answer: what a handler sees of an HTTP/1.1 connection.

In:  made by Http1Connection when the whole request is there; `handle(exchange)` is called at once.
Out: exactly one of `respond` (or `respond_parts`), or `start_stream`, `send_chunk`...,
     `end_stream`; now or later, on the event loop.
Rule: after the client is gone every call here is accepted and does nothing; `on_disconnect` tells
      when that happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from naiad.core.tensor import Buffer
from naiad.transport.http1.head import Head
from naiad.transport.http1.response_head import (
    JSON_TYPE,
    LAST_CHUNK,
    error_body,
    render_head,
    render_special_head,
)

if TYPE_CHECKING:
    from naiad.transport.http1.repeated import Repeated
    from naiad.transport.http1.response_queue import AnswerQueue

_JOIN_BYTES = 64 * 1024
"""Up to here parts of an answer are copied together: one small copy is cheaper than a scattered
write."""


class Exchange:
    __slots__ = (
        "_answers",
        "_is_chunked",
        "_on_disconnect",
        "_on_flow",
        "body",
        "head",
        "is_ended",
        "is_started",
        "receive_start_ns",
        "should_close",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, answers: AnswerQueue | None, head: Head, body: Buffer) -> None:
        self.head = head
        self.body = body
        self.receive_start_ns = 0
        """When the first byte of the body came, on the monotonic clock; 0 when the request came in
        one piece."""
        self.is_started = False
        self.is_ended = False
        self.should_close = False
        """The answer ends the connection."""
        self.waiting: list[Buffer] | None = None
        """Output that may not be written yet: an earlier request of the connection is still
        unanswered."""
        self.waiting_bytes = 0
        self._answers: AnswerQueue | None = answers
        self._on_disconnect: Callable[[], None] | None = None
        self._on_flow: Callable[[bool], None] | None = None
        self._is_chunked = False

    # What the handler calls.

    @property
    def trace_name(self) -> str:
        return "HTTP"

    def header(self, name: str) -> str:
        """The value of a header by its lower-case name; empty when the client did not send it."""
        return self.head.headers.get(name.encode(), b"").decode("latin-1")

    def respond(self, status: int, headers: bytes, body: Buffer = b"") -> None:
        self.respond_parts(status, headers, [body], len(body))

    def respond_parts(self, status: int, headers: bytes, parts: list[Buffer], size: int) -> None:
        """`size` is the sum of the parts' sizes. Large parts are written without a copy: their
        memory is held until then."""
        answers = self._answers
        if answers is None or self.is_started:
            return
        self.is_started = self.is_ended = True
        if self.head.is_plain and not answers.is_stopping:
            rendered = render_head(status, headers, size)
        else:
            self.should_close = answers.is_stopping or not self.head.keep_alive
            rendered = render_special_head(
                self.head, status, headers, size, should_close=self.should_close
            )
            if self.head.is_head:
                parts, size = [], 0
        if size < _JOIN_BYTES:
            answers.send(self, b"".join((rendered, *parts)))
        else:
            answers.send_parts(self, [rendered, *(part for part in parts if len(part))])

    def respond_again(self, start: bytes, data: list[Buffer]) -> bool:
        """An answer whose head and first bytes have been rendered before. False when this one needs
        a head of its own."""
        answers = self._answers
        if answers is None or self.is_started:
            return True
        if not self.head.is_plain or answers.is_stopping:
            return False
        self.is_started = self.is_ended = True
        answers.send(self, b"".join([start, *data]))
        return True

    def respond_error(self, status: int, message: str, headers: bytes = b"") -> None:
        self.respond(status, JSON_TYPE + headers, error_body(message))

    def start_stream(self, status: int, headers: bytes) -> None:
        answers = self._answers
        if answers is None or self.is_started:
            return
        self.is_started = True
        self.should_close = answers.is_stopping or not self.head.keep_alive or self.head.is_http10
        self._is_chunked = not self.head.is_http10 and not self.head.is_head
        answers.send(
            self,
            render_special_head(self.head, status, headers, None, should_close=self.should_close),
        )

    def send_chunk(self, data: bytes) -> None:
        answers = self._answers
        if answers is None or self.is_ended or not data or self.head.is_head:
            return
        answers.send(self, b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end_stream(self) -> None:
        answers = self._answers
        if answers is None or self.is_ended:
            return
        self.is_ended = True
        answers.send(self, LAST_CHUNK if self._is_chunked else b"")

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """The callback runs once, at once, when the client closes or resets the connection before
        the response is complete."""
        if self.is_disconnected:
            callback()
        elif not self.is_ended:
            self._on_disconnect = callback

    def on_flow(self, callback: Callable[[bool], None]) -> None:
        """Called with True when the client does not keep up with a stream, with False when it does
        again."""
        self._on_flow = callback

    def expect_again(self, again: Repeated) -> None:
        """The next request of the connection may be like this one."""
        if self._answers is not None:
            self._answers.again = again

    @property
    def is_disconnected(self) -> bool:
        return self._answers is None and not self.is_ended

    # What the connection calls.

    def detach(self) -> None:
        """The answer has been handed to the socket."""
        self._answers = None
        self._on_disconnect = self._on_flow = None

    def set_flow(self, *, is_paused: bool) -> None:
        if self._on_flow is not None:
            self._on_flow(is_paused)

    def disconnect(self) -> None:
        self._answers = None
        self.waiting = None
        self._on_flow = None
        callback, self._on_disconnect = self._on_disconnect, None
        if callback is not None and not self.is_ended:
            callback()
