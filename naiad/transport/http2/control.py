"""Frames that concern the whole connection: SETTINGS, PING, GOAWAY, and PRIORITY, which is ignored
as RFC 9113 allows.

In:  payloads whose size is already checked. Out: acknowledgements in the sender's output, events,
     the peer's settings applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from naiad.transport.http2.event import (
    Event,
    GoAwayReceived,
    PingAcknowledged,
    PingReceived,
    SettingsReceived,
)
from naiad.transport.http2.frame import (
    ACK,
    GOAWAY,
    MAX_MAX_FRAME_BYTES,
    MAX_STREAM_ID,
    MAX_WINDOW,
    MIN_MAX_FRAME_BYTES,
    PING,
    PRIORITY,
    SETTINGS,
    SETTINGS_ACK,
    SETTINGS_ENABLE_PUSH,
    SETTINGS_INITIAL_WINDOW_SIZE,
    SETTINGS_MAX_CONCURRENT_STREAMS,
    SETTINGS_MAX_FRAME_SIZE,
    ErrorCode,
    parse_settings,
    ping_frame,
    u32,
)
from naiad.transport.http2.frame_budget import FrameBudget
from naiad.transport.http2.limits import Http2ConnectionError, Http2Limits, protocol_error, too_much
from naiad.transport.http2.sender import Http2Sender

FrameHandler: TypeAlias = Callable[[bytes, int, int, list[Event]], None]
"""(payload, flags, stream id, events)"""


class ControlFrames:
    def __init__(
        self,
        limits: Http2Limits,
        sender: Http2Sender,
        frame_budget: FrameBudget,
        *,
        is_server: bool,
    ) -> None:
        self._limits = limits
        self._sender = sender
        self._frame_budget = frame_budget
        self._is_server = is_server
        self.peer_max_concurrent_streams = MAX_STREAM_ID

    def handlers(self) -> dict[int, FrameHandler]:
        return {
            SETTINGS: self._on_settings,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            PRIORITY: self._on_priority,
        }

    def _on_settings(self, payload: bytes, flags: int, stream_id: int, events: list[Event]) -> None:
        self._frame_budget.charge(SETTINGS)
        if flags & ACK:
            return
        settings = parse_settings(payload)
        if len(settings) > self._limits.max_settings_per_frame:
            raise too_much(
                "settings_flood",
                f"more than {self._limits.max_settings_per_frame} settings in one frame",
            )
        for key, value in settings:
            self._apply(key, value)
        # The acknowledgement goes first: it tells the peer from where on its new values apply, and
        # peers end streams that use a larger window before.
        self._sender.control(SETTINGS_ACK)
        self._sender.pump()
        events.append(SettingsReceived())

    def _apply(self, key: int, value: int) -> None:
        sender = self._sender
        if key == SETTINGS_INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise Http2ConnectionError(
                    ErrorCode.FLOW_CONTROL_ERROR,
                    "window_overflow",
                    "SETTINGS_INITIAL_WINDOW_SIZE above 2^31-1",
                )
            if value != sender.initial_window:
                # All open streams are updated, so the charge grows with their number.
                self._frame_budget.charge(SETTINGS, 1 + len(sender.streams) // 8)
                sender.change_initial_window(value)
        elif key == SETTINGS_MAX_FRAME_SIZE:
            if not MIN_MAX_FRAME_BYTES <= value <= MAX_MAX_FRAME_BYTES:
                raise protocol_error(f"SETTINGS_MAX_FRAME_SIZE {value} is out of range")
            sender.max_frame_bytes = value
        elif key == SETTINGS_MAX_CONCURRENT_STREAMS:
            self.peer_max_concurrent_streams = value
        elif key == SETTINGS_ENABLE_PUSH and (value > 1 or (value and not self._is_server)):
            raise protocol_error(f"SETTINGS_ENABLE_PUSH {value}")

    def _on_ping(self, payload: bytes, flags: int, stream_id: int, events: list[Event]) -> None:
        self._frame_budget.charge(PING)
        if flags & ACK:
            events.append(PingAcknowledged(payload))
            return
        self._sender.control(ping_frame(payload, is_ack=True))
        events.append(PingReceived())

    def _on_goaway(self, payload: bytes, flags: int, stream_id: int, events: list[Event]) -> None:
        self._frame_budget.charge(GOAWAY)
        last_stream_id = u32.unpack_from(payload, 0)[0] & MAX_STREAM_ID
        events.append(GoAwayReceived(last_stream_id, u32.unpack_from(payload, 4)[0], payload[8:]))

    def _on_priority(self, payload: bytes, flags: int, stream_id: int, events: list[Event]) -> None:
        self._frame_budget.charge(PRIORITY)
