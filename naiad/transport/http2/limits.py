"""Limits on what one HTTP/2 peer may cost the server: sizes, rates, and counters of refusals.

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
    """Bytes that a peer may send on one stream before we acknowledge them: large enough that a
    4 MiB tensor never waits."""
    connection_window_bytes: int = 64 * MIB
    max_frame_bytes: int = 4 * MIB + 64 * KIB
    """A tensor of 4 MiB fits one frame with its description. DATA is passed on as it arrives, so a
    frame needs no memory of its own."""
    max_header_list_bytes: int = 32 * KIB
    """The size of the decoded headers of one request, with 32 bytes per field as HPACK counts them;
    it bounds an HPACK bomb."""
    max_header_block_bytes: int = 32 * KIB
    max_continuation_frames: int = 8
    max_settings_per_frame: int = 32
    control_frame_burst: int = 4096
    """One budget for PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty DATA, frames on closed streams
    and unknown frames."""
    control_frames_per_s: int = 1000
    control_frames_per_data_frame: int = 8
    """Added to the budget for each DATA frame that we send: a peer that reads much has much to
    acknowledge."""
    reset_burst: int = 2048
    resets_per_s: int = 200
    """The budget for streams that the peer opens and then resets, or makes us reset (MadeYouReset).
    Streams that end normally are added back, so only abuse exhausts it."""
    max_stream_buffer_bytes: int = 64 * MIB
    """Bytes of responses that wait for a slow reader; one message of any size is always
    accepted."""
    max_connection_buffer_bytes: int = 1 * GIB
    max_queued_control_bytes: int = 256 * KIB
    """Bytes of acknowledgements that a peer provokes and does not read."""

    def __post_init__(self) -> None:
        # A peer may use the default window until it has seen our settings.
        if min(self.stream_window_bytes, self.connection_window_bytes) < DEFAULT_WINDOW:
            raise ValueError(f"windows must have at least {DEFAULT_WINDOW} bytes")


class FloodMeter:
    """A budget of `burst` tokens that refills by `per_s`. The clock is read only when the budget is
    empty."""

    __slots__ = ("_burst", "_clock_ns", "_per_s", "_since_ns", "tokens")

    def __init__(self, burst: int, per_s: int, clock_ns: Callable[[], int]) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock_ns = clock_ns
        self.tokens = burst
        self._since_ns = clock_ns()

    def charge(self, tokens: int = 1) -> bool:
        """Returns False when the peer has exceeded its budget."""
        self.tokens -= tokens
        return self.tokens >= 0 or self._refill()

    def give(self, tokens: int) -> None:
        self.tokens = min(self.tokens + tokens, self._burst)

    def _refill(self) -> bool:
        now_ns = self._clock_ns()
        earned = (now_ns - self._since_ns) * self._per_s // 1_000_000_000
        if earned > 0:
            self._since_ns = now_ns
            self.give(earned)
        return self.tokens >= 0


class Http2Counters:
    """Counts for all connections of an endpoint; the metrics page reads them."""

    def __init__(self) -> None:
        self.connections_total = 0
        self.connections_refused_total = 0
        self.streams_total = 0
        self.streams_refused_total = 0
        self.resets_received_total = 0
        self.slow_readers_total = 0
        self.failures: Counter[str] = Counter()
        """Connections that we ended, by the `cause` of the Http2ConnectionError."""


class Http2ConnectionError(Exception):
    """The peer broke the protocol or a limit; the connection ends. `cause` is a short constant, for
    the counter."""

    def __init__(self, code: ErrorCode, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.cause = cause
        self.reason = reason


class Http2StreamError(Exception):
    """One stream is faulty: it is reset and the connection continues."""

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
