"""The options of the HTTP endpoint, with Triton's names and defaults."""

from __future__ import annotations

import msgspec

from naiad.transport.http1.limits import Http1Limits


class Restriction(msgspec.Struct, frozen=True):
    """`--http-restricted-api`: requests must carry this header with this value."""

    header: str
    value: str


class HttpOptions(msgspec.Struct, frozen=True):
    max_input_size: int = 64 * 1024 * 1024
    """`--http-max-input-size`: the most bytes of a request's body, before and after
    decompression."""
    max_json_size: int = 4 * 1024 * 1024
    """`--http-max-json-size`: the most bytes of JSON that is not tensor data."""
    header_forward_pattern: str = ""
    """`--http-header-forward-pattern`: headers whose names match become request parameters."""
    restricted_apis: dict[str, Restriction] = {}
    """Keyed by Triton's groups: health, metadata, inference, shared-memory, model-config,
    model-repository, statistics, trace, logging."""
    fast_paths: bool = True
    """`--fast-paths`: requests that repeat an earlier one except for their data skip the full
    path."""
    allowed_hosts: frozenset[str] | None = None
    """Names that `Host` may have besides addresses and names of this machine; None allows all."""
    allowed_origins: frozenset[str] = frozenset()
    """Origins of pages that may send requests although the server did not serve them."""
    limits: Http1Limits = Http1Limits()
    """The limits of the transport; `max_input_size` replaces `max_body_bytes`."""
