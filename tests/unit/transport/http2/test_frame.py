from __future__ import annotations

import pytest

from naiad.transport.http2 import frame as http2_frame
from naiad.transport.http2.frame import ErrorCode
from tests.unit.transport.http2.http2_rig import (
    CONTINUATION,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    frames,
    setting,
    u32,
)


def test_control_frames() -> None:
    assert http2_frame.settings_frame({4: 65536, 5: 1 << 20}) == frame(
        SETTINGS, 0, 0, setting(4, 65536) + setting(5, 1 << 20)
    )
    assert frame(SETTINGS, 1, 0) == http2_frame.SETTINGS_ACK
    assert http2_frame.window_update_frame(3, 7) == frame(WINDOW, 0, 3, u32(7))
    assert http2_frame.rst_stream_frame(3, ErrorCode.CANCEL) == frame(RST, 0, 3, u32(8))
    assert http2_frame.ping_frame(b"12345678", is_ack=True) == frame(PING, 1, 0, b"12345678")
    assert http2_frame.goaway_frame(9, ErrorCode.NO_ERROR, b"bye") == frame(
        GOAWAY, 0, 0, u32(9) + u32(0) + b"bye"
    )


def test_settings_are_read_back() -> None:
    assert http2_frame.parse_settings(setting(4, 1) + setting(0xFFFF, 0xFFFFFFFF)) == [
        (4, 1),
        (0xFFFF, 0xFFFFFFFF),
    ]


@pytest.mark.parametrize("end_stream", [False, True])
def test_long_blocks_continue(end_stream: bool) -> None:
    block = bytes(range(250)) * 2
    first, second, last = frames(
        http2_frame.headers_frame(5, block, end_stream=end_stream, max_frame_bytes=200)
    )
    assert first[:3] == (HEADERS, int(end_stream), 5)
    assert second[:3] == (CONTINUATION, 0, 5)
    assert last[:3] == (CONTINUATION, END_HEADERS, 5)
    assert first[3] + second[3] + last[3] == block


def test_a_block_of_exactly_one_frame_does_not_continue() -> None:
    assert http2_frame.headers_frame(5, b"x" * 200, end_stream=True, max_frame_bytes=200) == frame(
        HEADERS, END_HEADERS | 1, 5, b"x" * 200
    )
