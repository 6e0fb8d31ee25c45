"""One HTTP/2 connection without I/O, for both roles: bytes in -> events out, commands in -> bytes
out.

In:  `receive(data)` with whatever the transport read. Out: events; what must be written is in
     `sender.pop_output()`.
Rule: `receive` returns whatever the peer sends. A broken stream is reset; a broken connection ends
      with one ConnectionFailed event and a GOAWAY in the output. Memory held here is at most one
      incomplete frame that is not DATA, and the header block in progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from naiad.core.memory_budget import MemoryAccount
from naiad.transport.http2.control import ControlFrames, FrameHandler
from naiad.transport.http2.event import (
    ConnectionFailed,
    Event,
    HeadersReceived,
    StreamEnded,
    TrailersReceived,
)
from naiad.transport.http2.frame import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ENABLE_PUSH,
    SETTINGS_INITIAL_WINDOW_SIZE,
    SETTINGS_MAX_CONCURRENT_STREAMS,
    SETTINGS_MAX_FRAME_SIZE,
    SETTINGS_MAX_HEADER_LIST_SIZE,
    WINDOW_UPDATE,
    ErrorCode,
    frame_header,
    goaway_frame,
    ping_frame,
    settings_frame,
    u32,
    window_update_frame,
)
from naiad.transport.http2.frame_budget import FrameBudget
from naiad.transport.http2.frame_check import check_frame
from naiad.transport.http2.hpack import HeaderBlocks, HeaderList, HpackDecoder
from naiad.transport.http2.incoming import (
    IncomingBlock,
    IncomingData,
    end_received,
    strip_headers_padding,
)
from naiad.transport.http2.limits import (
    Http2ConnectionError,
    Http2Counters,
    Http2Limits,
    Http2StreamError,
    protocol_error,
    too_much,
)
from naiad.transport.http2.sender import Http2Sender
from naiad.transport.http2.stream import HALF_CLOSED_LOCAL, MAY_RECEIVE, Stream

_parse_header = frame_header.unpack_from


class Http2Connection:
    """`make_head` turns a header list into what HeadersReceived carries; it may raise
    Http2StreamError. Equal blocks share one head."""

    def __init__(
        self,
        *,
        is_server: bool,
        make_head: Callable[[HeaderList], Any] = list,
        limits: Http2Limits | None = None,
        counters: Http2Counters | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        account: MemoryAccount | None = None,
    ) -> None:
        self.is_server = is_server
        self.limits = limits = limits or Http2Limits()
        self.counters = counters or Http2Counters()
        self.streams: dict[int, Stream] = {}
        self.sender = Http2Sender(self.streams, limits, account)
        self.is_closed = False
        self.last_peer_stream_id = 0
        self.goaway_last_stream_id = MAX_STREAM_ID
        """The last stream id in the GOAWAY that we sent: streams above it are refused."""

        self._next_stream_id = 1
        self.header_blocks = HeaderBlocks(HpackDecoder(limits.max_header_list_bytes), make_head)
        self._frame_budget = FrameBudget(limits, self.sender, clock_ns)
        self.incoming = IncomingData(limits, self.sender, self._frame_budget, is_server=is_server)
        self._control = ControlFrames(limits, self.sender, self._frame_budget, is_server=is_server)
        self._block: IncomingBlock | None = None
        self._held = b""
        self._skip_left = 0
        self._is_preface_due = is_server
        self._is_settings_due = True
        self._is_plain = False
        """The peer's SETTINGS were seen and no header block is in progress: common frames need no
        further checks."""
        self._handlers: dict[int, FrameHandler] = {
            **self._control.handlers(),
            RST_STREAM: self._on_rst_stream,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_continuation,
        }
        self._send_preface()

    def _send_preface(self) -> None:
        limits = self.limits
        settings = {
            SETTINGS_INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SETTINGS_MAX_FRAME_SIZE: limits.max_frame_bytes,
            SETTINGS_MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        if self.is_server:
            settings[SETTINGS_MAX_CONCURRENT_STREAMS] = limits.max_concurrent_streams
        else:
            settings[SETTINGS_ENABLE_PUSH] = 0
            self.sender.control(PREFACE)
        self.sender.control(settings_frame(settings))
        if limits.connection_window_bytes > DEFAULT_WINDOW:
            self.sender.control(
                window_update_frame(0, limits.connection_window_bytes - DEFAULT_WINDOW)
            )

    @property
    def peer_max_concurrent_streams(self) -> int:
        return self._control.peer_max_concurrent_streams

    # Commands. Those that concern an open stream are methods of `sender`.

    def open_stream(self, block: bytes, *, end_stream: bool = False) -> Stream:
        """Client only: a new request."""
        stream_id = self._next_stream_id
        if stream_id > MAX_STREAM_ID:
            raise protocol_error("no stream ids are left on this connection")
        self._next_stream_id = stream_id + 2
        stream = Stream(stream_id, self.sender.initial_window, self.limits.stream_window_bytes)
        self.streams[stream_id] = stream
        self.sender.headers(stream, block, end_stream=end_stream)
        return stream

    def ping(self, payload: bytes) -> None:
        self.sender.control(ping_frame(payload))

    def goaway(
        self, last_stream_id: int, code: int = ErrorCode.NO_ERROR, debug: bytes = b""
    ) -> None:
        self.goaway_last_stream_id = min(last_stream_id, self.goaway_last_stream_id)
        self.sender.control(goaway_frame(last_stream_id, code, debug))

    @property
    def is_inside_frame(self) -> bool:
        """A frame or a header block has arrived in part."""
        return bool(
            self._held or self.incoming.frame_left or self._skip_left or self._block is not None
        )

    def charge_reset(self) -> list[Event]:
        """Charges the end of a stream that a fault of the peer's provoked in the layer above."""
        return self._charge(self._frame_budget.charge_reset)

    def charge_refused(self) -> list[Event]:
        """Charges a stream that the layer above refuses for its head alone."""
        return self._charge(self._frame_budget.charge_refused)

    def _charge(self, charge: Callable[[], None]) -> list[Event]:
        events: list[Event] = []
        if not self.is_closed:
            try:
                charge()
            except Http2ConnectionError as fault:
                self._fail(fault, events)
        return events

    def pause(self, stream: Stream) -> None:
        """Stops renewing the stream's window: the peer may still send what it was promised."""
        stream.is_paused = True

    def resume(self, stream: Stream) -> None:
        stream.is_paused = False
        self.incoming.renew_window(stream)

    # Bytes in.

    def receive(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if not self.is_closed:
            try:
                self._parse(data, events)
                if self.sender.unread_control_bytes > self.limits.max_queued_control_bytes:
                    raise too_much(
                        "unread_control_frames",
                        "the peer does not read our acknowledgements of its control frames",
                    )
            except Http2ConnectionError as fault:
                self._fail(fault, events)
        return events

    def receive_buffer(self) -> memoryview | None:
        """Memory of the consumer for the next bytes, when they are the rest of a large DATA
        frame."""
        return (
            None
            if self._held or self.is_closed or not self.incoming.frame_left
            else self.incoming.sink()
        )

    def received_into_buffer(self, num_bytes: int) -> list[Event]:
        """`num_bytes` were put into what `receive_buffer` returned just before."""
        events: list[Event] = []
        self.incoming.sink_filled(num_bytes, events)
        return events

    # The fast path (naiad.fastpath.grpc_connection), which parses and checks frames itself.

    def room(self, data_bytes: int, num_updates: int) -> int:
        """The number of streams that the next bytes may open without coming near a limit, each with
        one DATA frame that ends it and `num_updates` WINDOW_UPDATE frames. 0 inside a frame or a
        header block, and when the connection is closed."""
        data = self.incoming
        if self._held or data.frame_left or self._skip_left or not self._is_plain or self.is_closed:
            return 0
        return min(
            self.limits.max_concurrent_streams - len(self.streams),
            (data.acknowledge_at - 1 - data.unacknowledged_bytes) // data_bytes,
            self._frame_budget.control.tokens // num_updates,
        )

    def opened(self, last_stream_id: int, count: int, data_bytes: int, num_updates: int) -> None:
        """`count` streams, no more than there was `room` for, have been opened and are in
        `streams`. `data_bytes` and `num_updates` are the totals of their frames."""
        self.last_peer_stream_id = last_stream_id
        self.counters.streams_total += count
        data = self.incoming
        data.window -= data_bytes
        data.unacknowledged_bytes += data_bytes
        self._frame_budget.control.tokens -= num_updates

    def _fail(self, fault: Http2ConnectionError, events: list[Event]) -> None:
        self.is_closed = True
        self.counters.failures[fault.cause] += 1
        self._held = b""
        self._block = None
        self.goaway(self.last_peer_stream_id, fault.code, fault.reason.encode())
        events.append(ConnectionFailed(fault.code, fault.reason))

    def _parse(self, data: bytes, events: list[Event]) -> None:
        if self._held:
            data = self._held + data
            self._held = b""
        offset, end = 0, len(data)
        if self._is_preface_due:
            offset = self._read_preface(data)
            if not offset:
                self._held = data
                return
        if self.incoming.frame_left:
            offset = self.incoming.resume(data, offset, events)
        elif self._skip_left:
            offset = self._skip(offset, end)
        while end - offset >= HEADER_BYTES:
            length, flags, stream_id = _parse_header(data, offset)
            kind = length & 255
            length >>= 8
            payload = offset + HEADER_BYTES
            frame_end = payload + length
            if self._is_plain:
                if kind == DATA:
                    next_offset = self._on_data(
                        data, payload, length, flags, stream_id & MAX_STREAM_ID, events
                    )
                    if next_offset < 0:
                        break
                    offset = next_offset
                    continue
                if kind == HEADERS and frame_end <= end:
                    self._on_headers(
                        data, payload, frame_end, flags, stream_id & MAX_STREAM_ID, events
                    )
                    offset = frame_end
                    continue
                if kind == WINDOW_UPDATE and length == 4 and frame_end <= end:
                    self._on_window_update(
                        data[payload:frame_end], flags, stream_id & MAX_STREAM_ID, events
                    )
                    offset = frame_end
                    continue
            offset = self._other_frame(
                data, offset, length, kind, flags, stream_id & MAX_STREAM_ID, events
            )
            if offset < 0:
                offset = payload - HEADER_BYTES
                break
        if offset < end:
            self._held = data[offset:]

    def _read_preface(self, data: bytes) -> int:
        """The length of the preface, or 0 while it is incomplete."""
        if not data.startswith(PREFACE[: len(data)]):
            raise protocol_error(
                "not HTTP/2: the connection does not begin with the client preface"
            )
        if len(data) < len(PREFACE):
            return 0
        self._is_preface_due = False
        return len(PREFACE)

    def _skip(self, offset: int, end: int) -> int:
        skipped = min(self._skip_left, end - offset)
        self._skip_left -= skipped
        return offset + skipped

    def _other_frame(
        self,
        data: bytes,
        offset: int,
        length: int,
        kind: int,
        flags: int,
        stream_id: int,
        events: list[Event],
    ) -> int:
        """Handles a frame that is not common. Returns the offset after it, or -1 when it is not
        complete."""
        if self._is_settings_due and (kind != SETTINGS or flags & ACK):
            raise protocol_error("the first frame must be SETTINGS")
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block.stream_id):
            raise protocol_error("a header block was interrupted by another frame")
        check_frame(kind, flags, stream_id, length, self.limits)
        payload = offset + HEADER_BYTES
        if kind > CONTINUATION:
            self._frame_budget.charge(kind)
            self._skip_left = length
            return self._skip(payload, len(data))
        frame_end = payload + length
        if frame_end > len(data):
            return -1
        self._handlers[kind](data[payload:frame_end], flags, stream_id, events)
        if self._is_settings_due:
            self._is_settings_due = False
            self._is_plain = True
        return frame_end

    # DATA.

    def _on_data(
        self, data: bytes, offset: int, length: int, flags: int, stream_id: int, events: list[Event]
    ) -> int:
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise protocol_error(f"DATA on stream {stream_id}, which was never opened")
            self._frame_budget.charge(DATA)
        return self.incoming.begin(data, offset, length, flags, stream, events)

    # HEADERS and CONTINUATION.

    def _on_headers(
        self,
        data: bytes,
        offset: int,
        frame_end: int,
        flags: int,
        stream_id: int,
        events: list[Event],
    ) -> None:
        if frame_end - offset > self.limits.max_header_block_bytes or not stream_id:
            check_frame(HEADERS, flags, stream_id, frame_end - offset, self.limits)
        block = (
            strip_headers_padding(data, offset, frame_end, flags)
            if flags & (PADDED | PRIORITY_FLAG)
            else data[offset:frame_end]
        )
        if flags & END_HEADERS:
            self._on_block(block, stream_id, flags & END_STREAM != 0, events)
        else:
            self._block = IncomingBlock(stream_id, block, flags & END_STREAM != 0, self.limits)
            self._is_plain = False

    def _on_continuation(
        self, payload: bytes, flags: int, stream_id: int, events: list[Event]
    ) -> None:
        block = self._block
        if block is None:
            raise protocol_error("CONTINUATION without HEADERS")
        block.add(payload)
        if flags & END_HEADERS:
            self._block = None
            self._is_plain = True
            self._on_block(block.block(), stream_id, block.end_stream, events)

    def _on_block(
        self, block: bytes, stream_id: int, end_stream: bool, events: list[Event]
    ) -> None:
        stream = self.streams.get(stream_id)
        if (
            is_new := stream is None
            and stream_id & 1 == 1
            and self.is_server
            and stream_id > self.last_peer_stream_id
        ):
            self.last_peer_stream_id = stream_id
        elif is_new := stream is None and self._is_idle(stream_id):
            self._check_new_id(stream_id)
        try:
            # Every block is decoded, even for a refused stream: it may change the dynamic table.
            head = self.header_blocks.head(block)
        except Http2StreamError as fault:
            if stream is None:
                self._frame_budget.charge(HEADERS)
                self.sender.reset_id(stream_id, fault.code)
            else:
                self._reset(stream, fault.code, events)
            return
        if stream is None:
            if not is_new:
                self._check_late_headers(stream_id)
                return
            stream = self._open_peer_stream(stream_id)
            if stream is None:
                return
        elif stream.state not in MAY_RECEIVE:
            self._reset(stream, ErrorCode.STREAM_CLOSED, events)
            return
        if stream.has_headers:
            self._on_trailers(stream, head, end_stream, events)
            return
        stream.has_headers = True
        events.append(HeadersReceived(stream, head, end_stream))
        if end_stream:
            end_received(stream, self.sender)

    def _on_trailers(
        self, stream: Stream, head: Any, end_stream: bool, events: list[Event]
    ) -> None:
        if not end_stream:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, events)
            return
        events.append(TrailersReceived(stream, head))
        end_received(stream, self.sender)

    def _check_new_id(self, stream_id: int) -> None:
        if not self.is_server:
            raise protocol_error(f"HEADERS on stream {stream_id}, which was never opened")
        if stream_id % 2 == 0:
            raise protocol_error(f"stream {stream_id} was opened by the client with an even id")
        self.last_peer_stream_id = stream_id

    def _open_peer_stream(self, stream_id: int) -> Stream | None:
        """Opens the stream of a new request. None when the request is refused."""
        self.counters.streams_total += 1
        if (
            len(self.streams) >= self.limits.max_concurrent_streams
            or stream_id > self.goaway_last_stream_id
        ):
            self.counters.streams_refused_total += 1
            self._frame_budget.charge(HEADERS)
            self.sender.reset_id(stream_id, ErrorCode.REFUSED_STREAM)
            return None
        stream = Stream(stream_id, self.sender.initial_window, self.limits.stream_window_bytes)
        self.streams[stream_id] = stream
        return stream

    def _check_late_headers(self, stream_id: int) -> None:
        """Ignores HEADERS on a closed stream that may have crossed our reset of it."""
        if stream_id not in self.sender.reset_ids:
            raise Http2ConnectionError(
                ErrorCode.STREAM_CLOSED,
                "stream_id",
                f"HEADERS on stream {stream_id}, which is closed",
            )
        self._frame_budget.charge(HEADERS)

    def _is_idle(self, stream_id: int) -> bool:
        if stream_id % 2 == 0:
            return True
        return (
            stream_id > self.last_peer_stream_id
            if self.is_server
            else stream_id >= self._next_stream_id
        )

    # Resets.

    def _reset(self, stream: Stream, code: int, events: list[Event]) -> None:
        """Resets a stream because of a fault of the peer's. To a server this costs as much as a
        reset by the peer, and is metered alike."""
        self.sender.reset(stream, code)
        events.append(StreamEnded(stream, code, is_remote=False))
        if self.is_server:
            self._frame_budget.charge_reset()

    def _on_rst_stream(
        self, payload: bytes, flags: int, stream_id: int, events: list[Event]
    ) -> None:
        stream = self.streams.get(stream_id)
        self.counters.resets_received_total += 1
        self._frame_budget.charge(RST_STREAM)
        if stream is None:
            if self._is_idle(stream_id):
                raise protocol_error(f"RST_STREAM on stream {stream_id}, which was never opened")
            return
        is_answered = self.is_server and stream.state == HALF_CLOSED_LOCAL
        self.sender.forget(stream)
        events.append(StreamEnded(stream, u32.unpack(payload)[0], is_remote=True))
        if is_answered:
            self.sender.num_finished += 1
        else:
            self._frame_budget.charge_reset()

    # Windows.

    def _on_window_update(
        self, payload: bytes, flags: int, stream_id: int, events: list[Event]
    ) -> None:
        self._frame_budget.charge(WINDOW_UPDATE)
        increment = u32.unpack(payload)[0] & MAX_WINDOW
        if stream_id == 0:
            if increment == 0:
                raise protocol_error("WINDOW_UPDATE of 0")
            self.sender.open_window(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise protocol_error(f"WINDOW_UPDATE on stream {stream_id}, which was never opened")
            return
        if increment == 0:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, events)
            return
        try:
            self.sender.open_stream_window(stream, increment)
        except Http2StreamError as fault:
            self._reset(stream, fault.code, events)
