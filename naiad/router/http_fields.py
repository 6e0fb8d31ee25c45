"""Which header fields pass through a proxy, in each direction, over HTTP/1.1 and gRPC.

Rule: a field belongs to one connection, or to the message from end to end. What a peer names in
      `Connection` can only remove fields that this file does not know: a client that could remove
      `Content-Length` would decide where the next request begins.
"""

from __future__ import annotations

from collections.abc import Collection

HOP_BY_HOP = frozenset((
    b"connection", b"http2-settings", b"keep-alive", b"proxy-authenticate",
    b"proxy-authorization", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
    b"upgrade",
))  # fmt: skip
WRITTEN = frozenset((b"content-length", b"expect", b"host"))
"""Fields of a request that whoever forwards it writes itself, or that end there."""
_END_TO_END = frozenset((
    b"accept", b"age", b"allow", b"authorization", b"cache-control", b"cookie", b"date", b"etag",
    b"expires", b"forwarded", b"from", b"idempotency-key", b"inference-header-content-length",
    b"last-modified", b"location", b"openai-organization", b"openai-project", b"origin", b"pragma",
    b"range", b"referer", b"retry-after", b"server", b"traceparent", b"tracestate", b"user-agent",
    b"vary", b"via", b"www-authenticate", b"x-api-key", b"x-real-ip", b"x-request-id",
    b"x-session-id",
))  # fmt: skip
_END_TO_END_STARTS = (
    b"accept-", b"content-", b"grpc-", b"if-", b"sec-", b"triton-", b"x-accel-", b"x-forwarded-",
    b"x-ratelimit-",
)  # fmt: skip
_OF_ORIGIN = frozenset((
    b"alt-svc", b"clear-site-data", b"refresh", b"service-worker-allowed", b"set-cookie",
    b"set-cookie2", b"strict-transport-security",
))  # fmt: skip
"""Fields by which a replica would change what a browser keeps for the router's name."""
MAX_RETRY_AFTER_S = 86_400


def named_in_connection(value: bytes, kept: Collection[bytes] = ()) -> frozenset[bytes]:
    """The fields that a `Connection` field removes. `kept` are further fields that stay."""
    names = {name.strip().lower() for name in value.split(b",")}
    return frozenset(
        name
        for name in names
        if name not in _END_TO_END
        and name not in WRITTEN
        and name not in kept
        and not name.startswith(_END_TO_END_STARTS)
    )


def is_for_client(name: bytes, value: bytes) -> bool:
    """True if a field of a replica's response, by its lower-case name, is passed on."""
    if name in HOP_BY_HOP or name in _OF_ORIGIN or name.startswith(b"access-control-"):
        return False
    return name != b"retry-after" or parse_retry_after(value) >= 0


def parse_retry_after(value: bytes) -> int:
    """In seconds; -1 for what is not a reasonable number of them."""
    if not value.isdigit() or len(value) > 5 or int(value) > MAX_RETRY_AFTER_S:
        return -1
    return int(value)
