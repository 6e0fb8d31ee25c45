"""gRPC's keepalive rules in both directions, on a clock that is passed in: whether the peer is
still there, and whether it pings too often.

`on_ping` judges the peer's pings (strikes); `tick` decides when to send ours and when their
acknowledgement is overdue.
"""

from __future__ import annotations

import enum

from naiad.transport.grpc.options import GrpcOptions

_MS = 1_000_000
_IDLE_PING_INTERVAL_NS = 7_200_000 * _MS
"""gRPC lets a client without calls ping every two hours, unless the server permits more."""


class Due(enum.Enum):
    NOTHING = 0
    PING = 1
    CLOSE = 2


class Keepalive:
    __slots__ = (
        "_last_activity",
        "_last_ping_ns",
        "_last_received_ns",
        "_options",
        "_ping_sent_ns",
        "_pings_sent",
        "_strikes",
    )

    def __init__(self, options: GrpcOptions, now_ns: int) -> None:
        self._options = options
        self._last_received_ns = now_ns
        self._ping_sent_ns = 0
        self._pings_sent = 0
        self._last_activity = 0
        self._last_ping_ns = 0
        self._strikes = 0

    def on_ping(self, now_ns: int, *, has_calls: bool, activity: int) -> bool:
        """True when the peer pings more often than it may. `activity` counts the HEADERS and DATA
        frames we sent."""
        options = self._options
        if activity != self._last_activity:
            self._note_activity(activity)
            self._strikes = 0
            self._last_ping_ns = 0
        may_be_frequent = has_calls or options.keepalive_permit_without_calls
        interval_ns = (
            options.min_recv_ping_interval_without_data_ms * _MS
            if may_be_frequent
            else _IDLE_PING_INTERVAL_NS
        )
        is_early = self._last_ping_ns != 0 and now_ns < self._last_ping_ns + interval_ns
        self._last_ping_ns = now_ns
        if is_early:
            self._strikes += 1
        return options.max_ping_strikes != 0 and self._strikes > options.max_ping_strikes

    def tick(self, now_ns: int, *, has_received: bool, has_calls: bool, activity: int) -> Due:
        """`has_received` tells whether anything has arrived since the last tick."""
        options = self._options
        if has_received:
            self._last_received_ns = now_ns
            self._ping_sent_ns = 0
        if self._ping_sent_ns:
            return (
                Due.CLOSE
                if now_ns - self._ping_sent_ns >= options.keepalive_timeout_ms * _MS
                else Due.NOTHING
            )
        if now_ns - self._last_received_ns < options.keepalive_time_ms * _MS or not (
            has_calls or options.keepalive_permit_without_calls
        ):
            return Due.NOTHING
        if activity != self._last_activity:
            self._note_activity(activity)
        if options.max_pings_without_data and self._pings_sent >= options.max_pings_without_data:
            return Due.NOTHING
        self._pings_sent += 1
        self._ping_sent_ns = now_ns
        return Due.PING

    def _note_activity(self, activity: int) -> None:
        self._last_activity = activity
        self._pings_sent = 0
