"""Compressed bodies: gzip and deflate, both ways, with a bound on what a small body may become.

Negotiation follows Triton: of identity, gzip and deflate the one with the highest weight, the first
named of equals.
"""

from __future__ import annotations

import zlib

from naiad.core.inflate import NoMemoryLeftError, always, as_array, inflate
from naiad.core.memory_budget import FULL_MESSAGE, RETRY_AFTER_S, Grow
from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, invalid_arg, unavailable

GZIP = "gzip"
DEFLATE = "deflate"
IDENTITY = "identity"
SUPPORTED = frozenset((GZIP, DEFLATE, IDENTITY))

_WINDOW_BITS = {GZIP: 16 + zlib.MAX_WBITS, DEFLATE: zlib.MAX_WBITS}
_LEVEL = 1
"""Speed matters more than size, because the response waits for the compression."""


def choose_encoding(accept: bytes) -> str:
    """From an Accept-Encoding header."""
    best, best_weight = IDENTITY, 0.0
    for item in accept.decode("latin-1").split(","):
        name, _, parameters = item.partition(";")
        weight = _weight(parameters)
        if name.strip() in SUPPORTED and weight > best_weight:
            best, best_weight = name.strip(), weight
    return best


def _weight(parameters: str) -> float:
    key, _, value = parameters.partition("=")
    if not parameters.strip():
        return 1.0
    try:
        return float(value) if key.strip() == "q" else 0.0
    except ValueError:
        return 0.0


def decompress(
    body: Buffer,
    encoding: str,
    max_bytes: int,
    grow: Grow = always,
    *,
    option: str = "--http-max-input-size",
) -> memoryview:
    """Returns at most `max_bytes`, which `option` sets, and asks `grow` before it makes more.
    Raises NaiadError."""
    if not len(body):
        raise invalid_arg("nothing to be decompressed")
    try:
        inflated = inflate(body, _WINDOW_BITS[encoding], max_bytes, grow)
    except zlib.error:
        raise invalid_arg(
            f"failed to decompress the request body: it is not valid {encoding} data"
        ) from None
    except NoMemoryLeftError:
        raise unavailable(FULL_MESSAGE, RETRY_AFTER_S) from None
    if len(inflated.data) > max_bytes:
        raise too_large(max_bytes, option)
    if not inflated.is_complete:
        raise invalid_arg(
            f"failed to decompress the request body: the {encoding} data is incomplete"
        )
    return as_array(inflated.data)


def too_large(max_bytes: int, option: str = "--http-max-input-size") -> NaiadError:
    return invalid_arg(
        f"Decompressed data size exceeds the maximum allowed value of {max_bytes} bytes. "
        f"Use {option} to increase the limit."
    )


def compress(parts: list[Buffer], encoding: str) -> bytes:
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    pieces = [stream.compress(part) for part in parts if len(part)]
    return b"".join((*pieces, stream.flush()))
