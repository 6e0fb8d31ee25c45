"""The sending half of an HTTP/2 connection: commands -> bytes, within the peer's windows.

In:  header blocks and data for streams, control frames. Out: `pop_output()`, the buffers to write,
     in order.
Rule: data that no window covers, or that comes while the transport is full, waits in its stream;
      everything else goes out at once. Streams that may send alternate every QUANTUM_BYTES, so a
      large response does not hold up small ones.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

from naiad.core.memory_budget import MemoryAccount
from naiad.transport.http2.frame import (
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
    ErrorCode,
    frame_header,
    headers_frame,
    rst_stream_frame,
)
from naiad.transport.http2.limits import (
    KIB,
    MIB,
    Http2ConnectionError,
    Http2Limits,
    Http2StreamError,
)
from naiad.transport.http2.stream import AFTER_SENT_END, CLOSED, HALF_CLOSED_LOCAL, Stream

Buffer: TypeAlias = bytes | bytearray | memoryview

QUANTUM_BYTES = 256 * KIB
_OUTPUT_TARGET_BYTES = 1 * MIB
_USEFUL_BYTES = 256
DRAINED_BYTES = 256 * KIB
_END_OF_RESPONSE = END_HEADERS | END_STREAM
_pack = frame_header.pack


@lru_cache(64)
def _response_packers(
    head: bytes, trailers: bytes
) -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    """Packers for the HEADERS frame with the header of the DATA frame after it, and for the HEADERS
    frame at the end."""
    return struct.Struct(f">IBI{len(head)}sIBI").pack, struct.Struct(f">IBI{len(trailers)}s").pack


class SlowReaderError(Exception):
    """The peer does not read what was already sent on this stream or connection; none of the new
    data was accepted."""


class NoMemoryError(Exception):
    """The memory budget has no room for data that must wait; none of it was accepted."""


class Http2Sender:
    __slots__ = (
        "_account",
        "_limits",
        "activity",
        "initial_window",
        "is_paused",
        "max_frame_bytes",
        "num_finished",
        "out",
        "out_bytes",
        "pending_bytes",
        "ready",
        "reset_ids",
        "streams",
        "unread_control_bytes",
        "useful_frames",
        "window",
    )

    def __init__(
        self,
        streams: dict[int, Stream],
        limits: Http2Limits,
        account: MemoryAccount | None = None,
    ) -> None:
        """Data that waits is charged to `account`, if there is one."""
        self.streams = streams
        self._account = account
        self._limits = limits
        self.out: list[Buffer] = []
        self.out_bytes = 0
        self.unread_control_bytes = 0
        """Bytes of control frames since the transport became full: grows when a peer provokes
        control frames and does not read them."""
        self.ready: dict[Stream, None] = {}
        """Streams with pending data and a window, in the order in which they send."""
        self.pending_bytes = 0
        self.window = DEFAULT_WINDOW
        self.initial_window = DEFAULT_WINDOW
        self.max_frame_bytes = MIN_MAX_FRAME_BYTES
        self.is_paused = False
        """The transport's buffer is full. The owner sets this, and calls `pump` after clearing
        it."""
        self.activity = 0
        """Grows with every HEADERS and DATA frame, so that keepalive sees whether any were sent."""
        self.useful_frames = 0
        """DATA frames that a peer may have to acknowledge, except frames that are small because of
        the peer's own tiny window."""
        self.num_finished = 0
        """Streams that both sides have ended."""
        self.reset_ids: deque[int] = deque(maxlen=64)
        """Streams that we reset recently: frames that were under way then are not errors."""

    # Output.

    def pop_output(self) -> list[Buffer]:
        """The buffers to write now. Must be called until it returns none: large responses come in
        portions while the transport keeps up."""
        out = self.out
        self.out = []
        self.out_bytes = 0
        if self.ready and not self.is_paused:
            self.pump()
        return out

    def control(self, frame: bytes) -> None:
        """Sends a frame that flow control does not cover."""
        self.out.append(frame)
        self.out_bytes += len(frame)
        if self.is_paused:
            self.unread_control_bytes += len(frame)

    # Streams.

    def headers(self, stream: Stream, block: bytes, *, end_stream: bool = False) -> None:
        frame = headers_frame(
            stream.id, block, end_stream=end_stream, max_frame_bytes=self.max_frame_bytes
        )
        self.out.append(frame)
        self.out_bytes += len(frame)
        self.activity += 1
        if end_stream:
            self._sent_end(stream)

    def data(
        self, stream: Stream, pieces: Sequence[Buffer], num_bytes: int, *, end_stream: bool = False
    ) -> None:
        """`num_bytes` is the total of `pieces`, which must not change until they are written."""
        if self._fits(stream, num_bytes) or not (num_bytes or stream.pending_bytes):
            self.out.append(_pack(num_bytes << 8 | DATA, end_stream, stream.id))
            self.out += pieces
            self.out_bytes += num_bytes + 9
            self.activity += 1
            self.useful_frames += 1
            stream.send_window -= num_bytes
            self.window -= num_bytes
            if end_stream:
                self._sent_end(stream)
            return
        self._admit(stream, num_bytes)
        self._queue(stream, pieces, num_bytes)
        stream.pending_end = end_stream
        self.pump()

    def trailers(self, stream: Stream, block: bytes) -> None:
        """Ends our side of the stream, after what is still pending on it."""
        if stream.pending_bytes:
            stream.pending_trailers = block
        else:
            self.headers(stream, block, end_stream=True)

    def response(
        self, stream: Stream, head: bytes, pieces: Sequence[Buffer], num_bytes: int, trailers: bytes
    ) -> None:
        """Sends a whole response. Equal to headers, data and trailers one after the other, but made
        for speed."""
        if not self._fits(stream, num_bytes):
            self._admit(stream, num_bytes)
            self.headers(stream, head)
            self._queue(stream, pieces, num_bytes)
            self.pump()
            self.trailers(stream, trailers)
            return
        stream_id = stream.id
        start, end = _response_packers(head, trailers)
        self.out += (
            start(
                len(head) << 8 | HEADERS,
                END_HEADERS,
                stream_id,
                head,
                num_bytes << 8 | DATA,
                0,
                stream_id,
            ),
            *pieces,
            end(len(trailers) << 8 | HEADERS, _END_OF_RESPONSE, stream_id, trailers),
        )
        self.out_bytes += num_bytes + len(head) + len(trailers) + 27
        self.activity += 1
        self.useful_frames += 1
        stream.send_window -= num_bytes
        self.window -= num_bytes
        state = stream.state = AFTER_SENT_END[stream.state]
        if state == CLOSED:
            self.num_finished += 1
            del self.streams[stream_id]

    def reset(self, stream: Stream, code: int) -> None:
        """Ends the stream in both directions at once; what was pending on it is dropped."""
        if stream.state != CLOSED:
            self.forget(stream)
            self.reset_id(stream.id, code)

    def reset_responded(self) -> None:
        """Server only: resets streams whose response is complete while their request is not."""
        for stream in list(self.streams.values()):
            if stream.state == HALF_CLOSED_LOCAL:
                self.reset(stream, ErrorCode.NO_ERROR)

    def reset_id(self, stream_id: int, code: int) -> None:
        self.reset_ids.append(stream_id)
        self.control(rst_stream_frame(stream_id, code))

    def forget(self, stream: Stream) -> None:
        stream.state = CLOSED
        self.streams.pop(stream.id, None)
        self.ready.pop(stream, None)
        self._release(stream.pending_bytes)
        self.pending_bytes -= stream.pending_bytes
        stream.pending_bytes = 0
        stream.pending = stream.pending_trailers = stream.sink = stream.on_drained = None

    def _fits(self, stream: Stream, num_bytes: int) -> bool:
        return (
            num_bytes <= stream.send_window
            and num_bytes <= self.window
            and num_bytes <= self.max_frame_bytes
            and not stream.pending_bytes
            and not self.is_paused
        )

    def _sent_end(self, stream: Stream) -> None:
        state = stream.state = AFTER_SENT_END[stream.state]
        if state == CLOSED:
            self.num_finished += 1
            self.streams.pop(stream.id, None)

    # Data that waits.

    def _admit(self, stream: Stream, num_bytes: int) -> None:
        """Charges data that must wait. Raises SlowReaderError or NoMemoryError."""
        if stream.pending_bytes:
            limits = self._limits
            if (
                stream.pending_bytes + num_bytes > limits.max_stream_buffer_bytes
                or self.pending_bytes + num_bytes > limits.max_connection_buffer_bytes
            ):
                raise SlowReaderError
        elif self.pending_bytes > self._limits.max_connection_buffer_bytes:
            raise SlowReaderError
        account = self._account
        if account is None:
            return
        if num_bytes <= min(stream.send_window, self.window) and not self.is_paused:
            account.add(num_bytes)  # it leaves at once, only in several frames
        elif not account.charge(num_bytes):
            raise NoMemoryError

    def _release(self, num_bytes: int) -> None:
        if self._account is not None:
            self._account.release(num_bytes)

    def _queue(self, stream: Stream, pieces: Sequence[Buffer], num_bytes: int) -> None:
        if stream.pending is None:
            stream.pending = deque()
        stream.pending.extend(piece for piece in pieces if len(piece))
        stream.pending_bytes += num_bytes
        self.pending_bytes += num_bytes
        if stream.send_window > 0:
            self.ready[stream] = None

    def pump(self) -> None:
        """Moves pending data to the output, as far as windows and the transport allow."""
        ready = self.ready
        while (
            ready
            and self.window > 0
            and not self.is_paused
            and self.out_bytes < _OUTPUT_TARGET_BYTES
        ):
            stream = next(iter(ready))
            del ready[stream]
            self._send_turn(stream)
            if stream.pending_bytes and stream.send_window > 0:
                ready[stream] = None

    def _send_turn(self, stream: Stream) -> None:
        num_bytes = min(
            stream.pending_bytes,
            stream.send_window,
            self.window,
            self.max_frame_bytes,
            QUANTUM_BYTES,
        )
        is_last = num_bytes == stream.pending_bytes
        end_stream = is_last and stream.pending_end
        self.out.append(_pack(num_bytes << 8 | DATA, end_stream, stream.id))
        self._move(stream, num_bytes)
        self.out_bytes += num_bytes + 9
        self.activity += 1
        if is_last or num_bytes >= _USEFUL_BYTES:
            self.useful_frames += 1
        self.window -= num_bytes
        stream.send_window -= num_bytes
        stream.pending_bytes -= num_bytes
        self.pending_bytes -= num_bytes
        self._release(num_bytes)
        if end_stream:
            self._sent_end(stream)
        elif is_last and stream.pending_trailers is not None:
            block, stream.pending_trailers = stream.pending_trailers, None
            self.headers(stream, block, end_stream=True)
        if stream.on_drained is not None and stream.pending_bytes <= DRAINED_BYTES:
            callback, stream.on_drained = stream.on_drained, None
            callback()

    def _move(self, stream: Stream, num_bytes: int) -> None:
        pending = stream.pending
        assert pending is not None
        while num_bytes:
            piece = pending.popleft()
            size = len(piece)
            if size > num_bytes:
                view = memoryview(piece)
                pending.appendleft(view[num_bytes:])
                piece, size = view[:num_bytes], num_bytes
            self.out.append(piece)
            num_bytes -= size

    # The peer's windows.

    def open_window(self, increment: int) -> None:
        self.window += increment
        if self.window > MAX_WINDOW:
            raise Http2ConnectionError(
                ErrorCode.FLOW_CONTROL_ERROR, "window_overflow", "connection window above 2^31-1"
            )
        if self.ready:
            self.pump()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise Http2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "stream window above 2^31-1")
        if stream.pending_bytes and stream.send_window > 0:
            self.ready[stream] = None
            self.pump()

    def change_initial_window(self, size: int) -> None:
        """Applies SETTINGS_INITIAL_WINDOW_SIZE to all open streams at once, which may make a window
        negative. Data that the change releases leaves with the next `pump`."""
        difference, self.initial_window = size - self.initial_window, size
        for stream in self.streams.values():
            stream.send_window += difference
            if stream.send_window > MAX_WINDOW:
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR,
                    "window_overflow",
                    "initial window makes a stream window overflow",
                )
            if stream.pending_bytes:
                if stream.send_window > 0:
                    self.ready[stream] = None
                else:
                    self.ready.pop(stream, None)
