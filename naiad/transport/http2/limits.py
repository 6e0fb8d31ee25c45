"""What one HTTP/2 peer may cost us: sizes, rates and the counters that show who was refused.

Every known attack has a line here: `Http2Limits` bounds it, `FloodMeter` measures its rate,
`Http2Counters` counts it by name.
Rule: a limit ends the connection with ENHANCE_YOUR_CALM or refuses one stream; it never slows the
      others down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from naiad.transport.http2.frame import DEFAULT_WINDOW, ErrorCode

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class Http2Limits(msgspec.Struct, frozen=True):
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 16 * MIB
    """What a peer may send on one stream before we take it: large enough that a 4 MiB tensor never
    waits."""
    connection_window_bytes: int = 64 * MIB
    max_frame_bytes: int = 4 * MIB + 64 * KIB
    """A tensor of 4 MiB and what is said about it come in one frame. DATA is handed on as it comes:
    a frame needs no memory of its own."""
    max_header_list_bytes: int = 32 * KIB
    """Decoded headers of one request, 32 bytes added per field as HPACK counts them: the bound of
    an HPACK bomb."""
    max_header_block_bytes: int = 32 * KIB
    max_continuation_frames: int = 8
    max_settings_per_frame: int = 32
    control_frame_burst: int = 4096
    """PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, frames on closed streams, unknown
    frames: all are paid from one purse."""
    control_frames_per_s: int = 1000
    control_frames_per_data_frame: int = 8
    """Added to the purse for each DATA frame that we send: a peer that reads a lot has a lot to
    acknowledge."""
    reset_burst: int = 2048
    resets_per_s: int = 200
    """Streams that the peer opened and reset; those that ended normally are given back, so only
    abuse runs dry."""
    max_stream_buffer_bytes: int = 64 * MIB
    """Answers waiting for a slow reader; one message is always accepted, whatever its size."""
    max_connection_buffer_bytes: int = 1 * GIB
    max_queued_control_bytes: int = 256 * KIB
    """Our acknowledgements to a peer that asks for them and does not read them."""

    def __post_init__(self) -> None:
        # A peer may use the default window until it has seen our settings.
        if min(self.stream_window_bytes, self.connection_window_bytes) < DEFAULT_WINDOW:
            raise ValueError(f"windows must have at least {DEFAULT_WINDOW} bytes")


class FloodMeter:
    """A purse of `burst` coins that refills by `per_s`. The clock is read only when it is empty."""

    __slots__ = ("_burst", "_clock_ns", "_per_s", "_since_ns", "coins")

    def __init__(self, burst: int, per_s: int, clock_ns: Callable[[], int]) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock_ns = clock_ns
        self.coins = burst
        self._since_ns = clock_ns()

    def pay(self, coins: int = 1) -> bool:
        """False when the peer has spent more than it may."""
        self.coins -= coins
        return self.coins >= 0 or self._refill()

    def give(self, coins: int) -> None:
        self.coins = min(self.coins + coins, self._burst)

    def _refill(self) -> bool:
        now_ns = self._clock_ns()
        earned = (now_ns - self._since_ns) * self._per_s // 1_000_000_000
        if earned > 0:
            self._since_ns = now_ns
            self.give(earned)
        return self.coins >= 0


class Http2Counters:
    """Shared by all connections of an endpoint; read by the metrics page."""

    def __init__(self) -> None:
        self.connections_total = 0
        self.connections_refused_total = 0
        self.streams_total = 0
        self.streams_refused_total = 0
        self.resets_received_total = 0
        self.slow_readers_total = 0
        self.failures: Counter[str] = Counter()
        """Connections ended by us, by cause: the keys are the `cause` of Http2ConnectionError."""


class Http2ConnectionError(Exception):
    """The peer broke the protocol or a limit; the connection ends. `cause` is a short constant, for
    the counter."""

    def __init__(self, code: ErrorCode, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.cause = cause
        self.reason = reason


class Http2StreamError(Exception):
    """One stream is wrong; it is reset and the connection goes on."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def protocol_error(reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "protocol_error", reason)


def frame_size_error(reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "frame_size", reason)


def too_much(cause: str, reason: str) -> Http2ConnectionError:
    return Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, cause, reason)
