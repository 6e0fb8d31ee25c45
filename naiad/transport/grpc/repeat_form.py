"""The bytes of a request that repeats, frame by frame, with holes where the stream's id and the
data of its message are.

In:  the frames of one request. Out: how to compare the next ones with it as a whole, and to take
     what is in the holes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from naiad.transport.grpc.message import ALLOCATE_RATIO, PREFIX_BYTES, Buffer
from naiad.transport.http2.frame import (
    DATA,
    END_STREAM,
    HEADER_BYTES,
    MAX_WINDOW,
    WINDOW_UPDATE,
    frame_header,
)
from naiad.transport.http2.limits import KIB

if TYPE_CHECKING:
    from naiad.transport.grpc.method import RequestHead
    from naiad.transport.grpc.repeat import Repeats
    from naiad.transport.grpc.repeat_call import RepeatedCall

Layout: TypeAlias = Sequence[bytes | int]
"""Of a message: bytes that are the same in all of a kind, then the size of a part that is not, and
so on in turns."""
Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

MAX_DATA_BYTES: Final = 4096
"""To copy more would cost more than the long way, which hands on views."""
MIN_TAIL_BYTES: Final = 64 * KIB
"""No read that brings the beginning of a large request brings all of it."""
UPDATE_BYTES: Final = HEADER_BYTES + 4
MAX_UPDATES: Final = 4
"""Of the connection's window, that may precede a large request."""
_KIND_AND_FLAGS_END: Final = 5

_parse_header: Final = frame_header.unpack_from
_prefix: Final = struct.Struct(">BI").pack


class MessageForm(Protocol):
    """What a method knows of messages that are alike."""

    @property
    def layout(self) -> Layout: ...
    @property
    def head(self) -> RequestHead: ...
    def call(
        self, repeats: Repeats, stream_id: int, send_window: int, parts: tuple[Buffer, ...]
    ) -> RepeatedCall | None:
        """For a message with these parts. None when it must go the long way; nothing has happened
        then."""
        ...

    def memory(self, num_bytes: int) -> memoryview | None:
        """For the last part of a message, while it arrives. None: it must go the long way."""
        ...


class RequestForm(msgspec.Struct, frozen=True):
    unpack: Unpack
    """Constants at 0, 2, ...; between them the stream's id, once for each frame, then the parts of
    the message."""
    constants: tuple[bytes, ...]
    last_id_at: int
    num_bytes: int
    """Without the tail."""
    data_bytes: int
    increment: int
    """Of the WINDOW_UPDATE on the stream; 0 when there is none."""
    message: Any
    """A MessageForm."""
    table_changes: int
    """HpackDecoder.changes when the header block meant what it means here."""
    tail_bytes: int = 0
    """Of a large request: its last part, which is no hole to be copied out of the bytes of a read
    but arrives in memory of its own."""

    @property
    def enough_bytes(self) -> int:
        """That must have arrived before memory is taken for the tail."""
        return self.num_bytes + self.tail_bytes // ALLOCATE_RATIO

    @property
    def read_bytes(self) -> int:
        """To ask for when such a request may come next: what must be copied once more, since it is
        not read into its memory, is little."""
        return self.enough_bytes + MAX_UPDATES * UPDATE_BYTES


def learn_frames(
    data: bytes, at: int, head: RequestHead, max_message_bytes: int, table_changes: int
) -> RequestForm | None:
    """`data` begins with a HEADERS frame that ends at `at`. None when it is not followed by one
    message and the end of the stream, or by the beginning of one that is too large for a read."""
    _, _, stream_id = _parse_header(data, 0)
    pieces: list[bytes | int | None] = [data[:_KIND_AND_FLAGS_END], None, data[HEADER_BYTES:at]]
    length, flags, frame_stream_id = _parse_header(data, at)
    increment = 0
    if (
        length == 4 << 8 | WINDOW_UPDATE
        and not flags
        and frame_stream_id == stream_id
        and len(data) - at >= UPDATE_BYTES + HEADER_BYTES
    ):
        increment = int.from_bytes(data[at + HEADER_BYTES : at + UPDATE_BYTES], "big")
        if not 0 < increment <= MAX_WINDOW:
            return None
        pieces += (
            data[at : at + _KIND_AND_FLAGS_END],
            None,
            data[at + HEADER_BYTES : at + UPDATE_BYTES],
        )
        at += UPDATE_BYTES
        length, flags, frame_stream_id = _parse_header(data, at)
    start = at + HEADER_BYTES
    data_bytes = length >> 8
    message_bytes = data_bytes - PREFIX_BYTES
    end = start + data_bytes
    if (
        length & 255 != DATA
        or flags != END_STREAM
        or frame_stream_id != stream_id
        or not 0 < message_bytes <= max_message_bytes
        or (end > len(data) if data_bytes <= MAX_DATA_BYTES else data_bytes <= MIN_TAIL_BYTES)
        or data[start : start + PREFIX_BYTES] != _prefix(0, message_bytes)
    ):
        return None
    assert head.method is not None
    assert head.method.learn is not None
    message = head.method.learn(data[start + PREFIX_BYTES : end], message_bytes, head)
    if message is None:
        return None
    layout = list(message.layout)
    tail_bytes = 0
    if data_bytes > MAX_DATA_BYTES:
        tail = layout.pop()
        if not isinstance(tail, int) or tail <= MIN_TAIL_BYTES:
            return None
        tail_bytes = tail
    pieces += (
        data[at : at + _KIND_AND_FLAGS_END],
        None,
        data[start : start + PREFIX_BYTES],
        *layout,
    )
    unpack, constants = _compile(pieces)
    last_id_at = 5 if increment else 3
    return RequestForm(
        unpack,
        constants,
        last_id_at,
        end - tail_bytes,
        data_bytes,
        increment,
        message,
        table_changes,
        tail_bytes,
    )


def _compile(pieces: Iterable[bytes | int | None]) -> tuple[Unpack, tuple[bytes, ...]]:
    """None is a stream's id. Constants that follow one another become one, so that constants and
    holes take turns."""
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
