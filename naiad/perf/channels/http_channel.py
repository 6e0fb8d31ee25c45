"""One HTTP/1.1 connection that carries one request at a time.

In:  `send(bytes, call)`. Out: calls to the Listener, with the time at which the bytes arrived.
Rule: a request needs no task and no future; those exist only while connecting. Bodies are kept only
      if should_keep_body is set.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from naiad.perf.channels.address import Address
from naiad.perf.channels.call import Call, ConnectError, Listener
from naiad.perf.channels.http_body import ResponseReader
from naiad.perf.channels.http_head import BadResponseError, HeadCache, ResponseHead
from naiad.perf.channels.sse import SseReader
from naiad.perf.report.failure_text import http_failure, one_line
from naiad.transport.tcp_watch import expect_responses

_MAX_ERROR_BYTES = 1 << 16
_WRITE_HIGH_BYTES = 1 << 26
CONNECT_LIMIT_S = 10.0


class HttpChannel(asyncio.Protocol):
    def __init__(
        self,
        address: Address,
        listener: Listener,
        *,
        tls: ssl.SSLContext | None = None,
        heads: HeadCache | None = None,
        should_keep_body: bool = False,
        is_event_stream: bool = False,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Each server-sent event of an event stream is a response, where bodies are kept or
        `is_event_stream` is set; with that, so is a whole body of another type."""
        self.num_in_flight = 0
        self._address = address
        self._listener = listener
        self._tls = tls
        self._heads = heads or HeadCache()
        self._reader = ResponseReader(self._heads)
        self._should_keep_body = should_keep_body
        self._is_event_stream = is_event_stream
        self._events = SseReader()
        self._clock_ns = clock_ns
        self._transport: asyncio.Transport | None = None
        self._call: Call | None = None
        self._kept: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        address = self._address
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await loop.create_connection(
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
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    def send(self, data: bytes, call: Call) -> None:
        self._call = call
        self.num_in_flight = 1
        transport = self._transport
        if transport is None:
            self._connecting = asyncio.get_running_loop().create_task(
                self._reopen_and_send(data, call)
            )
        else:
            transport.write(data)

    async def _reopen_and_send(self, data: bytes, call: Call) -> None:
        try:
            await self.open()
        except ConnectError as error:
            call.is_lost = True
            self._end(str(error), b"", self._clock_ns())
            return
        finally:
            self._connecting = None
        assert self._transport is not None
        self._transport.write(data)
        call.written_ns = self._clock_ns()

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(_WRITE_HIGH_BYTES)
        expect_responses(transport.get_extra_info("socket"))
        self._transport = transport
        self._reader = ResponseReader(self._heads)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._call is None:
            return
        now_ns = self._clock_ns()
        head = self._reader.end_of_stream()
        if head is not None:
            self._finish(head, now_ns)
        else:
            reason = f": {connect_reason(exc)}" if exc is not None else ""
            self._end(f"the server closed the connection before it responded{reason}", b"", now_ns)

    def data_received(self, data: bytes) -> None:
        now_ns = self._clock_ns()
        call = self._call
        if call is None:
            self._drop("the server sent bytes without a request")
            return
        if not call.first_byte_ns:
            call.first_byte_ns = now_ns
        try:
            if self._reader.is_between_responses:
                end = data.find(b"\r\n\r\n")
                if end > 0:
                    head = self._heads.head(data[:end])
                    if (
                        head.status == 200
                        and head.content_length == len(data) - end - 4
                        and not self._is_event_stream
                        and not self._has_events(head)
                    ):
                        self.num_in_flight = 0
                        self._call = None
                        if head.is_closing:
                            self._detach()
                        self._listener.on_end(
                            call,
                            None,
                            (head, data[end + 4 :]) if self._should_keep_body else None,
                            now_ns,
                        )
                        return
            for head, piece, is_last in self._reader.feed(data):
                self._on_piece(call, head, piece, now_ns)
                if is_last:
                    self._finish(head, now_ns)
                    if self._call is not None and self._call is not call:
                        # The listener has sent the next request, whose response cannot be in this
                        # read.
                        return
        except BadResponseError as error:
            self._drop(str(error))

    def _on_piece(self, call: Call, head: ResponseHead, piece: bytes, now_ns: int) -> None:
        if head.status != 200:
            if sum(map(len, self._kept)) < _MAX_ERROR_BYTES:
                self._kept.append(piece)
        elif self._has_events(head):
            for event in self._events.feed(piece):
                self._listener.on_response(call, event, now_ns)
        elif self._should_keep_body or self._is_event_stream:
            self._kept.append(piece)

    def _finish(self, head: ResponseHead, now_ns: int) -> None:
        call, body = self._call, b"".join(self._kept)
        assert call is not None
        if head.is_closing:
            self._detach()
        if head.status != 200:
            self._end(http_failure(head.status, body), b"", now_ns)
            return
        if self._has_events(head):
            for event in self._events.finish():
                self._listener.on_response(call, event, now_ns)
        elif self._is_event_stream:
            self._listener.on_response(call, body, now_ns)
        self._end(None, (head, body), now_ns)

    def _has_events(self, head: ResponseHead) -> bool:
        is_read = self._is_event_stream or self._should_keep_body
        return is_read and b"event-stream" in head.content_type

    def _end(self, error: str | None, payload: object, now_ns: int) -> None:
        call = self._call
        self._call = None
        self._kept = []
        self._events = SseReader()
        self.num_in_flight = 0
        if call is not None:
            self._listener.on_end(call, error, payload, now_ns)

    def _drop(self, reason: str) -> None:
        transport = self._transport
        self._detach()
        if transport is not None:
            transport.abort()
        self._end(reason, b"", self._clock_ns())

    def _detach(self) -> None:
        """Closes the connection and ignores further bytes from it. The next request uses a new
        connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.set_protocol(asyncio.Protocol())
            transport.close()


def connect_reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {CONNECT_LIMIT_S:g} s"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error)) or type(error).__name__
