"""The HTTP/2 frames around messages that repeat, with holes for the stream id and the parts of the
message.

In:  the frames of one request, or the layout of a response message. Out: how to compare the next
     requests with the first one as a whole and extract the contents of the holes; how to write a
     response by filling the holes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from naiad.core.tensor import Buffer
from naiad.transport.grpc.message import ALLOCATE_RATIO, PREFIX_BYTES
from naiad.transport.grpc.status import OK_TRAILERS, RESPONSE_HEADERS
from naiad.transport.http2.frame import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    HEADERS,
    MAX_WINDOW,
    WINDOW_UPDATE,
    frame_header,
)
from naiad.transport.http2.limits import KIB

if TYPE_CHECKING:
    from naiad.fastpath.grpc_plan import MessagePlan
    from naiad.transport.grpc.method import RequestHead

Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]
LearnPlan: TypeAlias = "Callable[[bytes, int], MessagePlan | None]"
"""MessagePlans.learn: (a message or the beginning of a large one, its length) -> its plan."""

MAX_DATA_BYTES: Final = 4096
"""The largest small request. Copying more costs more than the full path, which passes views on."""
MIN_TAIL_BYTES: Final = 64 * KIB
"""The smallest last tensor of a large request. No read that brings the beginning of such a request
brings all of it."""
UPDATE_BYTES: Final = HEADER_BYTES + 4
MAX_UPDATES: Final = 4
"""Updates of the connection's window that may precede a large request."""
_JOIN_BYTES: Final = 64 * KIB
"""Larger responses are not copied together."""
_STREAM_ID_OFFSET: Final = 5

_parse_header: Final = frame_header.unpack_from
_prefix: Final = struct.Struct(">BI").pack


class RequestFrames(msgspec.Struct, frozen=True):
    """HEADERS, perhaps a WINDOW_UPDATE on the stream, and one DATA frame that ends the stream."""

    head: RequestHead
    plan: MessagePlan
    unpack: Unpack
    """Returns constants at even positions; at odd ones the stream id, once for each frame, then the
    parts of the message."""
    constants: tuple[bytes, ...]
    last_id_index: int
    """The position of the last stream id among the unpacked fields."""
    parts: slice
    """The positions of the parts of the message among the unpacked fields."""
    num_bytes: int
    """The size of all frames, without the tail."""
    data_bytes: int
    """The payload of the DATA frame."""
    increment: int
    """The WINDOW_UPDATE on the stream; 0 when there is none."""
    table_changes: int
    """HpackDecoder.changes while the header block meant what it means here."""
    tail_bytes: int = 0
    """The size of a large request's last tensor, which arrives in memory of its own instead of
    being copied out of a read. 0 for a small request."""

    @property
    def enough_bytes(self) -> int:
        """Bytes that must have arrived before memory is allocated for the tail."""
        return self.num_bytes + self.tail_bytes // ALLOCATE_RATIO

    @property
    def read_bytes(self) -> int:
        """How much to read when such a request may come next. Bytes of the tail that are read with
        the beginning must be copied, so the read is kept short."""
        return self.enough_bytes + MAX_UPDATES * UPDATE_BYTES


def learn_frames(
    data: bytes,
    offset: int,
    head: RequestHead,
    max_message_bytes: int,
    table_changes: int,
    learn_plan: LearnPlan,
) -> RequestFrames | None:
    """`data` begins with a HEADERS frame that ends at `offset`. None unless one message and the end
    of the stream follow, or the beginning of a message that is too large for a read."""
    _, _, stream_id = _parse_header(data, 0)
    pieces: list[bytes | int | None] = [data[:_STREAM_ID_OFFSET], None, data[HEADER_BYTES:offset]]
    length, flags, frame_stream_id = _parse_header(data, offset)
    increment = 0
    if (
        length == 4 << 8 | WINDOW_UPDATE
        and not flags
        and frame_stream_id == stream_id
        and len(data) - offset >= UPDATE_BYTES + HEADER_BYTES
    ):
        payload = data[offset + HEADER_BYTES : offset + UPDATE_BYTES]
        increment = int.from_bytes(payload, "big")
        if not 0 < increment <= MAX_WINDOW:
            return None
        pieces += (data[offset : offset + _STREAM_ID_OFFSET], None, payload)
        offset += UPDATE_BYTES
        length, flags, frame_stream_id = _parse_header(data, offset)
    start = offset + HEADER_BYTES
    data_bytes = length >> 8
    message_bytes = data_bytes - PREFIX_BYTES
    end = start + data_bytes
    is_large = data_bytes > MAX_DATA_BYTES
    if (
        length & 255 != DATA
        or flags != END_STREAM
        or frame_stream_id != stream_id
        or not 0 < message_bytes <= max_message_bytes
        or (data_bytes <= MIN_TAIL_BYTES if is_large else end > len(data))
        or data[start : start + PREFIX_BYTES] != _prefix(0, message_bytes)
    ):
        return None
    plan = learn_plan(data[start + PREFIX_BYTES : end], message_bytes)
    if plan is None:
        return None
    layout = list(plan.layout.pieces)
    tail_bytes = 0
    if is_large:
        tail = layout.pop()
        if not isinstance(tail, int) or tail <= MIN_TAIL_BYTES:
            return None
        tail_bytes = tail
    pieces += (data[offset : offset + _STREAM_ID_OFFSET], None)
    pieces += (data[start : start + PREFIX_BYTES], *layout)
    unpack, constants = _compile(pieces)
    last_id_index = 5 if increment else 3
    return RequestFrames(
        head,
        plan,
        unpack,
        constants,
        last_id_index,
        slice(last_id_index + 2, None, 2),
        end - tail_bytes,
        data_bytes,
        increment,
        table_changes,
        tail_bytes,
    )


def _compile(pieces: Iterable[bytes | int | None]) -> tuple[Unpack, tuple[bytes, ...]]:
    """None stands for a stream id, an int for a part of that size. Consecutive constants are
    joined, so that constants and holes alternate."""
    layout = ">"
    constants = [b""]
    for piece in pieces:
        if isinstance(piece, bytes):
            constants[-1] += piece
        else:
            layout += f"{len(constants[-1])}s" + ("I" if piece is None else f"{piece}s")
            constants.append(b"")
    layout += f"{len(constants[-1])}s"
    return struct.Struct(layout).unpack_from, tuple(constants)


class ResponseFrames:
    """HEADERS, DATA and HEADERS of responses whose message has one layout."""

    __slots__ = ("_constants", "data_bytes", "is_large", "num_bytes", "template")

    def __init__(self, layout: Sequence[bytes | int]) -> None:
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
        """Expects the stream id twice, the parts of the message, and the stream id again."""
        self._constants = [b""]
        for piece in pieces:
            if isinstance(piece, int):
                self._constants.append(b"")
            else:
                self._constants[-1] += piece

    def pieces(self, stream_id: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
        """What the template yields, without copying the parts."""
        constants = self._constants
        out: list[Buffer] = [stream_id.join(constants[:3])]
        for part, constant in zip(parts, constants[3:-1], strict=True):
            out += (part, constant)
        out[-1] = b"".join((constants[-2], stream_id, constants[-1]))
        return out


def _frame(kind: int, flags: int, num_bytes: int) -> tuple[bytes, int]:
    """The header of a frame, with a hole for the stream id."""
    return frame_header.pack(num_bytes << 8 | kind, flags, 0)[:_STREAM_ID_OFFSET], 4


def _size(layout: Iterable[bytes | int]) -> int:
    return sum(piece if isinstance(piece, int) else len(piece) for piece in layout)
