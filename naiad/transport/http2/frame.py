"""HTTP/2 frames as bytes: numbers of RFC 9113, and one builder per frame that we send.

Rule: this file has no state. connection.py decides what a frame means for a connection or stream.
"""

from __future__ import annotations

import enum
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_STREAM_ID = 0x7FFFFFFF
MAX_WINDOW = 0x7FFFFFFF
DEFAULT_WINDOW = 65535
MIN_MAX_FRAME_BYTES = 16384
MAX_MAX_FRAME_BYTES = 16777215

(
    DATA,
    HEADERS,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    PUSH_PROMISE,
    PING,
    GOAWAY,
    WINDOW_UPDATE,
    CONTINUATION,
) = range(10)
FRAME_NAMES = (
    "DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY",
    "WINDOW_UPDATE", "CONTINUATION",
)  # fmt: skip

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

# Plain ints, not an IntEnum: settings arrive with any number.
SETTINGS_HEADER_TABLE_SIZE = 1
SETTINGS_ENABLE_PUSH = 2
SETTINGS_MAX_CONCURRENT_STREAMS = 3
SETTINGS_INITIAL_WINDOW_SIZE = 4
SETTINGS_MAX_FRAME_SIZE = 5
SETTINGS_MAX_HEADER_LIST_SIZE = 6


class ErrorCode(enum.IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


# The 24-bit length and the 8-bit type are packed as one 32-bit number, (length << 8) | type.
frame_header = struct.Struct(">IBI")
u32 = struct.Struct(">I")
_setting = struct.Struct(">HI")
_frame_u32 = struct.Struct(">IBII")
_goaway = struct.Struct(">IBIII")


def settings_frame(settings: dict[int, int]) -> bytes:
    body = b"".join(_setting.pack(key, value) for key, value in settings.items())
    return frame_header.pack(len(body) << 8 | SETTINGS, 0, 0) + body


SETTINGS_ACK = frame_header.pack(SETTINGS, ACK, 0)


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    return list(_setting.iter_unpack(payload))


def window_update_frame(stream_id: int, increment: int) -> bytes:
    return _frame_u32.pack(4 << 8 | WINDOW_UPDATE, 0, stream_id, increment)


def rst_stream_frame(stream_id: int, code: int) -> bytes:
    return _frame_u32.pack(4 << 8 | RST_STREAM, 0, stream_id, code)


def ping_frame(payload: bytes, *, is_ack: bool = False) -> bytes:
    return frame_header.pack(8 << 8 | PING, ACK if is_ack else 0, 0) + payload


def goaway_frame(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    return _goaway.pack((8 + len(debug)) << 8 | GOAWAY, 0, 0, last_stream_id, code) + debug


def headers_frame(
    stream_id: int, block: bytes, *, end_stream: bool, max_frame_bytes: int = MIN_MAX_FRAME_BYTES
) -> bytes:
    """One HEADERS frame, and CONTINUATION frames where the block does not fit the peer's frame
    size."""
    if len(block) <= max_frame_bytes:
        return (
            frame_header.pack(len(block) << 8 | HEADERS, END_HEADERS | end_stream, stream_id)
            + block
        )
    parts = [
        frame_header.pack(max_frame_bytes << 8 | HEADERS, int(end_stream), stream_id),
        block[:max_frame_bytes],
    ]
    for offset in range(max_frame_bytes, len(block), max_frame_bytes):
        piece = block[offset : offset + max_frame_bytes]
        is_last = offset + max_frame_bytes >= len(block)
        parts.append(
            frame_header.pack(
                len(piece) << 8 | CONTINUATION, END_HEADERS if is_last else 0, stream_id
            )
        )
        parts.append(piece)
    return b"".join(parts)
