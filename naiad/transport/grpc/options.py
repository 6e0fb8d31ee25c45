"""Everything that can be set about the gRPC endpoint, with Triton's defaults where Triton has the
flag."""

from __future__ import annotations

import msgspec

from naiad.transport.http2.limits import KIB, MIB, Http2Limits

INT32_MAX = 2**31 - 1


class GrpcOptions(msgspec.Struct, frozen=True):
    # --grpc-keepalive-time, -timeout, -permit-without-calls and --grpc-http2-* mean what they mean
    # to gRPC.
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    max_pings_without_data: int = 2
    min_recv_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    """0 sets no limit."""
    max_connection_age_grace_ms: int = 0
    """0 sets no limit for calls in flight."""

    fast_paths: bool = True
    """`--fast-paths`: requests that repeat an earlier one except for their data skip the full
    path."""
    infer_response_compression_level: str = "none"
    header_forward_pattern: str = ""
    restricted_protocols: dict[str, tuple[str, str]] = {}
    """Protocol group (Triton's names: health, metadata, inference, ...) -> (header name without
    prefix, its value)."""

    max_message_bytes: int = INT32_MAX
    max_connections: int = 10_000
    # The deadlines; ConnectionDeadlines applies them.
    request_timeout_s: float = 60.0
    """The time for a connection's first request, for a frame or header block that has begun, and
    for a message, from the headers of its call or its first byte on. Every
    `min_receive_bytes_per_s` received add one second."""
    min_receive_bytes_per_s: int = 64 * KIB
    stream_idle_timeout_s: float = 3600.0
    """A call that streams requests ends when none has come for this time and none is in flight. 0
    sets no limit."""
    idle_timeout_s: float = 600.0
    """A connection without calls for this time is drained and closed. 0 sets no limit."""
    write_timeout_s: float = 300.0
    """A connection that accepts no waiting byte for this time is closed."""
    max_watches: int = 10_000
    """Health.Watch calls in all; further ones are refused with RESOURCE_EXHAUSTED."""
    max_connection_watches: int = 100
    """Health.Watch calls of one connection."""
    max_stream_request_bytes: int = 16 * MIB
    """The limit for each ModelStreamInfer; above it the stream's window is not renewed."""
    http2: Http2Limits = Http2Limits()
