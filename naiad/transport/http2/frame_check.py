"""Checks what a frame's header alone can show, so that an invalid frame is not waited for. DATA is
checked where it is read."""

from __future__ import annotations

from naiad.transport.http2.frame import (
    ACK,
    CONTINUATION,
    DATA,
    FRAME_NAMES,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from naiad.transport.http2.limits import Http2Limits, frame_size_error, protocol_error, too_much

_EXACT_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))
_ON_STREAM = frozenset((HEADERS, CONTINUATION, PRIORITY, RST_STREAM))
_MAX_GOAWAY_BYTES = 4096
_MAX_SETTINGS_BYTES = 6 * 1024
_MAX_PADDING_BYTES = 256 + 5


def check_frame(kind: int, flags: int, stream_id: int, length: int, limits: Http2Limits) -> None:
    if length > limits.max_frame_bytes:
        raise frame_size_error(
            f"frame of {length} bytes, at most {limits.max_frame_bytes} were announced"
        )
    if kind > CONTINUATION or kind == DATA:
        return
    expected = _EXACT_SIZES.get(kind)
    if expected is not None and length != expected:
        raise frame_size_error(f"{FRAME_NAMES[kind]} of {length} bytes, expected {expected}")
    if kind in _ON_CONNECTION and stream_id:
        raise protocol_error(f"{FRAME_NAMES[kind]} on stream {stream_id}, expected 0")
    if kind in _ON_STREAM and not stream_id:
        raise protocol_error(f"{FRAME_NAMES[kind]} on stream 0")
    if (
        kind in (HEADERS, CONTINUATION)
        and length > limits.max_header_block_bytes + _MAX_PADDING_BYTES
    ):
        raise too_much(
            "header_list", f"header block larger than {limits.max_header_block_bytes} bytes"
        )
    if kind == SETTINGS:
        _check_settings(flags, length)
    elif kind == GOAWAY and not 8 <= length <= _MAX_GOAWAY_BYTES:
        raise frame_size_error(f"GOAWAY of {length} bytes")
    elif kind == PUSH_PROMISE:
        raise protocol_error("PUSH_PROMISE is not allowed here")


def _check_settings(flags: int, length: int) -> None:
    if length % 6 or (length and flags & ACK):
        raise frame_size_error(f"SETTINGS of {length} bytes")
    if length > _MAX_SETTINGS_BYTES:
        raise too_much("settings_flood", f"SETTINGS of {length} bytes")
