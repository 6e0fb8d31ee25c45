"""The bytes of a request that repeats, frame by frame, with holes where the stream's id and the data of its message are.

In:  the frames of one request. Out: how to compare the next ones with it as a whole, and to take what is in the holes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from naiad.transport.grpc_message import PREFIX_BYTES, Buffer
from naiad.transport.http2_frame import DATA, END_STREAM, HEADER_BYTES, MAX_WINDOW, WINDOW_UPDATE, frame_header

if TYPE_CHECKING:
    from naiad.transport.grpc_method import RequestHead
    from naiad.transport.grpc_repeat import Repeats
    from naiad.transport.grpc_repeat_call import RepeatedCall

Layout: TypeAlias = Sequence[bytes | int]
"""Of a message: bytes that are the same in all of a kind, then the size of a part that is not, and so on in turns."""
Unpack: TypeAlias = Callable[[Buffer, int], tuple[Any, ...]]

MAX_DATA_BYTES: Final = 4096
"""To copy more would cost more than the long way, which hands on views."""
UPDATE_BYTES: Final = HEADER_BYTES + 4
_KIND_AND_FLAGS_END: Final = 5

_parse_header: Final = frame_header.unpack_from
_prefix: Final = struct.Struct(">BI").pack


class MessageForm(Protocol):
    """What a method knows of messages that are alike."""

    @property
    def layout(self) -> Layout: ...
    @property
    def head(self) -> RequestHead: ...
    def call(self, repeats: Repeats, stream_id: int, send_window: int, parts: tuple[bytes, ...]) -> RepeatedCall | None:
        """For a message with these parts. None when it must go the long way; nothing has happened then."""
        ...


class RequestForm(msgspec.Struct, frozen=True):
    unpack: Unpack
    """Constants at 0, 2, ...; between them the stream's id, once for each frame, then the parts of the message."""
    constants: tuple[bytes, ...]
    last_id_at: int
    num_bytes: int
    data_bytes: int
    increment: int
    """Of the WINDOW_UPDATE on the stream; 0 when there is none."""
    message: Any
    """A MessageForm."""
    table_changes: int
    """HpackDecoder.changes when the header block meant what it means here."""


def learn_frames(data: bytes, at: int, head: RequestHead, max_message_bytes: int, table_changes: int) -> RequestForm | None:
    """`data` begins with a HEADERS frame that ends at `at`. None when it is not followed by one message and the end of the stream."""
    _, _, stream_id = _parse_header(data, 0)
    pieces: list[bytes | int | None] = [data[:_KIND_AND_FLAGS_END], None, data[HEADER_BYTES:at]]
    length, flags, frame_stream_id = _parse_header(data, at)
    increment = 0
    if length == 4 << 8 | WINDOW_UPDATE and not flags and frame_stream_id == stream_id and len(data) - at >= UPDATE_BYTES + HEADER_BYTES:
        increment = int.from_bytes(data[at + HEADER_BYTES : at + UPDATE_BYTES], "big")
        if not 0 < increment <= MAX_WINDOW:
            return None
        pieces += (data[at : at + _KIND_AND_FLAGS_END], None, data[at + HEADER_BYTES : at + UPDATE_BYTES])
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
        or end > len(data)
        or not 0 < message_bytes <= min(MAX_DATA_BYTES - PREFIX_BYTES, max_message_bytes)
        or data[start : start + PREFIX_BYTES] != _prefix(0, message_bytes)
    ):
        return None
    assert head.method is not None
    assert head.method.learn is not None
    message = head.method.learn(data[start + PREFIX_BYTES : end], head)
    if message is None:
        return None
    pieces += (data[at : at + _KIND_AND_FLAGS_END], None, data[start : start + PREFIX_BYTES], *message.layout)
    unpack, constants = _compile(pieces)
    return RequestForm(unpack, constants, 5 if increment else 3, end, data_bytes, increment, message, table_changes)


def _compile(pieces: Iterable[bytes | int | None]) -> tuple[Unpack, tuple[bytes, ...]]:
    """None is a stream's id. Constants that follow one another become one, so that constants and holes take turns."""
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
