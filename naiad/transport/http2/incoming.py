"""What arrives in parts on a connection: DATA frames, passed on as they come, and header blocks,
kept until they are complete.

Rule: a DATA frame is charged to the windows when its header arrives, and returned to them when its
      bytes do.
"""

from __future__ import annotations

from naiad.transport.http2.event import DataReceived, Event, SinkFilled, StreamEnded
from naiad.transport.http2.frame import (
    DATA,
    END_STREAM,
    PADDED,
    PRIORITY_FLAG,
    ErrorCode,
    window_update_frame,
)
from naiad.transport.http2.frame_budget import FrameBudget
from naiad.transport.http2.limits import (
    Http2ConnectionError,
    Http2Limits,
    frame_size_error,
    protocol_error,
    too_much,
)
from naiad.transport.http2.sender import Http2Sender
from naiad.transport.http2.stream import (
    AFTER_RECEIVED_END,
    CLOSED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    MAY_RECEIVE,
    OPEN,
    Stream,
)

_SMALL_BYTES = 4096
"""Smaller data is copied out of the read buffer: a copy is cheaper than a view and does not keep
the buffer alive."""
_MIN_SINK_BYTES = 16384


class IncomingData:
    __slots__ = (
        "_acknowledge_stream_at",
        "_frame_budget",
        "_frame_end_stream",
        "_is_server",
        "_limits",
        "_pad_left",
        "_sender",
        "_stream",
        "acknowledge_at",
        "frame_left",
        "unacknowledged_bytes",
        "window",
    )

    def __init__(
        self,
        limits: Http2Limits,
        sender: Http2Sender,
        frame_budget: FrameBudget,
        *,
        is_server: bool,
    ) -> None:
        self._limits = limits
        self._is_server = is_server
        self._sender = sender
        self._frame_budget = frame_budget
        self.window = limits.connection_window_bytes
        self.unacknowledged_bytes = 0
        self.acknowledge_at = limits.connection_window_bytes // 2
        self._acknowledge_stream_at = limits.stream_window_bytes // 2
        # A frame of which only a part has arrived.
        self.frame_left = 0
        self._pad_left = 0
        self._stream: Stream | None = None
        self._frame_end_stream = False

    def begin(
        self,
        data: bytes,
        offset: int,
        length: int,
        flags: int,
        stream: Stream | None,
        events: list[Event],
    ) -> int:
        """Begins a frame whose payload starts at `offset`. Returns the offset after the part of it
        that has arrived; -1 when more is needed first.

        `stream` is None for a stream that has ended: its bytes are counted and dropped.
        """
        end_stream = flags & END_STREAM != 0
        if (
            stream is not None
            and end_stream
            and stream.state == OPEN
            and not flags & PADDED
            and length <= _SMALL_BYTES
            and offset + length <= len(data)
            and length <= stream.receive_window
            and length <= self.window
        ):
            # A whole request in one frame: only the connection's window must be renewed.
            stream.state = HALF_CLOSED_REMOTE
            events.append(DataReceived(stream, data[offset : offset + length], True))
            self.window -= length
            self._acknowledge(None, length)
            return offset + length
        pad, start = 0, offset
        if flags & PADDED:
            if length and offset >= len(data):
                return -1
            pad = data[offset] if length else 0
            offset += 1
            if pad >= length:
                raise protocol_error("padding is longer than its frame")
        if length > self.window:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "flow_control", "DATA exceeds the connection window"
            )
        if length > self._limits.max_frame_bytes:
            raise frame_size_error(
                f"frame of {length} bytes, at most {self._limits.max_frame_bytes} were announced"
            )
        self.window -= length
        if stream is not None:
            stream = self._admit(stream, length, flags, events)
        frame_end = start + length
        content_end = frame_end - pad
        if offset == content_end and not flags & END_STREAM:
            self._frame_budget.charge(DATA)
        if frame_end <= len(data):
            self._deliver(
                data, offset, content_end, length, stream, flags & END_STREAM != 0, events
            )
            return frame_end
        self._stream = stream
        self._frame_end_stream = flags & END_STREAM != 0
        self.frame_left = frame_end - offset
        self._pad_left = pad
        self._acknowledge(stream, offset - start)
        return self.resume(data, offset, events)

    def begin_known(self, stream: Stream, length: int, left: int) -> None:
        """Begins the last frame of a stream on the fast path, which has checked the frame already;
        `left` bytes of it are still to come."""
        self.window -= length
        stream.receive_window -= length
        self._stream = stream
        self._frame_end_stream = True
        self._pad_left = 0
        self.frame_left = left
        self._acknowledge(stream, length - left)

    def _admit(self, stream: Stream, length: int, flags: int, events: list[Event]) -> Stream | None:
        state = stream.state
        if state not in MAY_RECEIVE:
            code = ErrorCode.STREAM_CLOSED
        elif length > stream.receive_window:
            code = ErrorCode.FLOW_CONTROL_ERROR
        elif state == HALF_CLOSED_LOCAL and self._is_server and not flags & END_STREAM:
            # The response is complete: the rest of the request is not needed.
            code = ErrorCode.NO_ERROR
        else:
            stream.receive_window -= length
            return stream
        self._sender.reset(stream, code)
        events.append(StreamEnded(stream, code, is_remote=False))
        if self._is_server and code != ErrorCode.NO_ERROR:
            self._frame_budget.charge_reset()
        return None

    def resume(self, data: bytes, offset: int, events: list[Event]) -> int:
        """Handles more bytes of the frame that `begin` left unfinished."""
        stream = self._live_stream()
        available = min(self.frame_left, len(data) - offset)
        content = min(available, max(0, self.frame_left - self._pad_left))
        self.frame_left -= available
        end_stream = self._frame_end_stream and self.frame_left == 0
        self._deliver(data, offset, offset + content, available, stream, end_stream, events)
        if self.frame_left == 0:
            self._stream = None
        return offset + available

    def _deliver(
        self,
        data: bytes,
        offset: int,
        content_end: int,
        num_bytes: int,
        stream: Stream | None,
        end_stream: bool,
        events: list[Event],
    ) -> None:
        """`num_bytes` of the frame have arrived, padding included; the content is
        data[offset:content_end]."""
        if stream is not None and (offset < content_end or end_stream):
            chunk = (
                data[offset:content_end]
                if content_end - offset <= _SMALL_BYTES
                else memoryview(data)[offset:content_end]
            )
            events.append(DataReceived(stream, chunk, end_stream))
            if end_stream:
                end_received(stream, self._sender)
        self._acknowledge(stream, num_bytes)

    def _live_stream(self) -> Stream | None:
        """The stream of the unfinished frame, unless it was reset meanwhile."""
        stream = self._stream
        if stream is not None and stream.state not in MAY_RECEIVE:
            stream = self._stream = None
        return stream

    # Data that is read straight into the consumer's memory.

    def sink(self) -> memoryview | None:
        left = self.frame_left - self._pad_left
        if left < _MIN_SINK_BYTES:
            return None
        stream = self._live_stream()
        if stream is None or stream.sink is None or len(stream.sink) < _MIN_SINK_BYTES:
            return None
        return stream.sink[:left]

    def sink_filled(self, num_bytes: int, events: list[Event]) -> None:
        stream = self._stream
        assert stream is not None
        self.frame_left -= num_bytes
        end_stream = self._frame_end_stream and self.frame_left == 0
        if self.frame_left == 0:
            self._stream = None
        events.append(SinkFilled(stream, num_bytes, end_stream))
        if end_stream:
            end_received(stream, self._sender)
        self._acknowledge(stream, num_bytes)

    # Renewing windows.

    def _acknowledge(self, stream: Stream | None, num_bytes: int) -> None:
        """Renews the connection's window when due, and the stream's unless it is paused."""
        self.unacknowledged_bytes += num_bytes
        if self.unacknowledged_bytes >= self.acknowledge_at:
            self._sender.control(window_update_frame(0, self.unacknowledged_bytes))
            self.window += self.unacknowledged_bytes
            self.unacknowledged_bytes = 0
        if stream is not None:
            stream.unacknowledged_bytes += num_bytes
            if stream.unacknowledged_bytes >= self._acknowledge_stream_at and not stream.is_paused:
                self.renew_window(stream)

    def renew_window(self, stream: Stream) -> None:
        if (
            stream.state in MAY_RECEIVE
            and stream.unacknowledged_bytes >= self._acknowledge_stream_at
        ):
            self._sender.control(window_update_frame(stream.id, stream.unacknowledged_bytes))
            stream.receive_window += stream.unacknowledged_bytes
            stream.unacknowledged_bytes = 0


def end_received(stream: Stream, sender: Http2Sender) -> None:
    state = stream.state = AFTER_RECEIVED_END[stream.state]
    if state == CLOSED:
        sender.num_finished += 1
        sender.streams.pop(stream.id, None)


class IncomingBlock:
    """A header block that is spread over HEADERS and CONTINUATION frames."""

    __slots__ = ("_bytes", "_limits", "_num_frames", "end_stream", "stream_id")

    def __init__(self, stream_id: int, first: bytes, end_stream: bool, limits: Http2Limits) -> None:
        self.stream_id = stream_id
        self.end_stream = end_stream
        self._bytes = bytearray(first)
        self._limits = limits
        self._num_frames = 0

    def add(self, fragment: bytes) -> None:
        self._bytes += fragment
        self._num_frames += 1
        if self._num_frames > self._limits.max_continuation_frames:
            raise too_much(
                "continuation_flood",
                f"more than {self._limits.max_continuation_frames} CONTINUATION frames for one "
                "header block",
            )
        if len(self._bytes) > self._limits.max_header_block_bytes:
            raise too_much(
                "header_list",
                f"header block larger than {self._limits.max_header_block_bytes} bytes",
            )

    def block(self) -> bytes:
        return bytes(self._bytes)


def strip_headers_padding(data: bytes, offset: int, frame_end: int, flags: int) -> bytes:
    """The header block fragment of a HEADERS frame with padding or priority fields."""
    pad = 0
    if flags & PADDED:
        if offset >= frame_end:
            raise frame_size_error("padded HEADERS without a padding length")
        pad = data[offset]
        offset += 1
    if flags & PRIORITY_FLAG:
        offset += 5
    if offset + pad > frame_end:
        raise protocol_error("padding or priority is longer than its frame")
    return data[offset : frame_end - pad]
