"""A request that came the short way (grpc_repeat.py), and the frames of its answer.

Rule: it ends once, by `reply`, or as a `Call` like any other, which it becomes when something out
      of the ordinary happens to it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from naiad.transport.grpc.call import Call
from naiad.transport.grpc.message import PREFIX_BYTES, Buffer, Message, ReceiveBudget
from naiad.transport.grpc.repeat_arrival import Arrival
from naiad.transport.grpc.status import OK_TRAILERS, RESPONSE_HEADERS, Status
from naiad.transport.http2.frame import DATA, END_HEADERS, END_STREAM, HEADERS, frame_header
from naiad.transport.http2.limits import KIB
from naiad.transport.http2.stream import CLOSED, HALF_CLOSED_REMOTE, OPEN, Stream

if TYPE_CHECKING:
    from naiad.transport.grpc.method import RequestHead
    from naiad.transport.grpc.protocol import GrpcProtocol
    from naiad.transport.grpc.repeat_form import Layout

_stream_id_bytes: Final = struct.Struct(">I").pack
_prefix: Final = struct.Struct(">BI").pack
_JOIN_BYTES: Final = 64 * KIB
"""Larger answers are not copied together."""


class RepeatedCall(Stream):
    """The stream and the call in one. Its `context` is itself, until it ends or becomes a Call."""

    receive_window: int = 0
    state: int = HALF_CLOSED_REMOTE
    has_headers: bool = True
    repeats: Any = None
    """The Repeats that it came by."""
    form: Any = None
    """The MessageForm of its request."""
    reader: Any = None
    """The Arrival of a large request, until all of it is there."""
    # What the protocol's stall check saw last.
    seen_bytes: int = 0
    seen_ns: int = 0

    def start(self) -> None:
        """The request goes to work; `reply` or `as_call` follows, now or later."""
        raise NotImplementedError

    def start_late(self) -> None:
        """The same, of a large request: time has passed since it was made, and what it was made by
        may be gone."""
        raise NotImplementedError

    def stop(self) -> None:
        """Nobody waits for the answer any more."""
        raise NotImplementedError

    # While a large request arrives, as a Call does.

    def begin(
        self, memory: memoryview, budget: ReceiveBudget, head_bytes: int, receive_window: int
    ) -> None:
        """`memory` is for the last part of the message; the `head_bytes` before it have arrived."""
        self.state = OPEN
        self.receive_window = receive_window
        self.reader = Arrival(memory, budget, head_bytes)

    @property
    def is_done(self) -> bool:
        return self.context is not self

    def receive(self, messages: list[Message], end_stream: bool) -> None:
        if end_stream:
            self.reader = None
            try:
                self.start_late()
            except Exception:
                self.as_call().broken()

    # The answer.

    def reply(self, frames: AnswerFrames, parts: Sequence[Buffer]) -> bool:
        """The whole answer, status OK. False: nothing has happened; it would have to wait, as the
        answer of a Call can."""
        protocol: GrpcProtocol = self.repeats.protocol
        sender = protocol.sender
        num_bytes = frames.data_bytes
        if (
            num_bytes > self.send_window
            or num_bytes > sender.window
            or num_bytes > sender.max_frame_bytes
            or sender.is_paused
        ):
            return False
        # reset by frames that came with the last bytes of the request, and were read before it was
        # started
        if self.state == CLOSED:
            return False
        stream_id = _stream_id_bytes(self.id)
        if frames.is_large:
            sender.out += frames.pieces(stream_id, parts)
        else:
            sender.out.append(frames.template % (stream_id, stream_id, *parts, stream_id))
        sender.out_bytes += frames.num_bytes
        sender.activity += 1
        sender.useful_frames += 1
        sender.num_finished += 1
        sender.window -= num_bytes
        self.state = CLOSED
        self.context = None
        del sender.streams[self.id]
        protocol.flush_soon()
        return True

    def as_call(self) -> Call:
        """The long way from here on."""
        head: RequestHead = self.form.head
        assert head.method is not None
        call = self.context = Call(self.repeats.protocol, self, head, head.method)
        call.on_cancel = self.stop
        call.reader, self.reader = self.reader, None
        return call

    # As the context of its stream.

    def cancel(self) -> None:
        self.as_call().cancel()

    def abort(self, status: Status, message: str) -> None:
        self.as_call().abort(status, message)


class AnswerFrames:
    """HEADERS, DATA and HEADERS of answers whose message has this layout."""

    __slots__ = ("_constants", "data_bytes", "is_large", "num_bytes", "template")

    def __init__(self, layout: Layout) -> None:
        message_bytes = _size(layout)
        self.data_bytes = message_bytes + PREFIX_BYTES
        pieces = (
            *_frame(HEADERS, END_HEADERS, len(RESPONSE_HEADERS)),
            RESPONSE_HEADERS,
            *_frame(DATA, 0, self.data_bytes),
            _prefix(0, message_bytes),
            *layout,
            *_frame(HEADERS, END_HEADERS | END_STREAM, len(OK_TRAILERS)),
            OK_TRAILERS,
        )
        self.num_bytes = _size(pieces)
        self.is_large = self.num_bytes > _JOIN_BYTES
        self.template = b"".join(
            b"%b" if isinstance(piece, int) else piece.replace(b"%", b"%%") for piece in pieces
        )
        """Wants the stream's id twice, the parts of the message, and the id again."""
        self._constants = [b""]
        for piece in pieces:
            if isinstance(piece, int):
                self._constants.append(b"")
            else:
                self._constants[-1] += piece

    def pieces(self, stream_id: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
        """What the template makes, without copying the parts."""
        constants = self._constants
        out: list[Buffer] = [stream_id.join(constants[:3])]
        for part, constant in zip(parts, constants[3:-1], strict=True):
            out += (part, constant)
        out[-1] = b"".join((constants[-2], stream_id, constants[-1]))
        return out


def _frame(kind: int, flags: int, num_bytes: int) -> tuple[bytes, int]:
    """The head of a frame; the stream's id is a hole."""
    return frame_header.pack(num_bytes << 8 | kind, flags, 0)[:5], 4


def _size(layout: Layout) -> int:
    return sum(piece if isinstance(piece, int) else len(piece) for piece in layout)
