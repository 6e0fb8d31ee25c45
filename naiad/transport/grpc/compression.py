"""Compresses and decompresses messages with gzip and deflate. Decompression stops at a limit, so a
small message cannot become an arbitrarily large one."""

from __future__ import annotations

import zlib
from typing import TypeAlias

from naiad.core.inflate import NoMemoryLeftError, always, as_array, inflate
from naiad.core.memory_budget import Grow
from naiad.transport.grpc.status import GrpcError, Status, memory_full
from naiad.transport.http2.limits import MIB

Buffer: TypeAlias = bytes | bytearray | memoryview

COMPRESSION_LEVELS: dict[str, int] = {"none": 0, "low": 1, "medium": 6, "high": 9}
"""zlib's level for each value of Triton's --grpc-infer-response-compression-level."""
MIN_COMPRESSED_BYTES = 256
"""Smaller messages are sent as they are: gzip would not make them smaller."""
INLINE_BYTES = 64 * 1024
"""A thread compresses and decompresses larger messages: zlib releases the interpreter lock, so the
event loop continues."""
_ALWAYS_ALLOWED_BYTES = 64 * MIB
_ALLOWED_RATIO = 32

_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ENCODINGS = frozenset(("identity", *_WINDOW_BITS))


def decompressed_limit_bytes(compressed_bytes: int, max_message_bytes: int) -> int:
    return min(max_message_bytes, max(_ALWAYS_ALLOWED_BYTES, _ALLOWED_RATIO * compressed_bytes))


def decompress(
    data: Buffer, encoding: str, max_message_bytes: int, grow: Grow = always
) -> memoryview:
    """Raises GrpcError. Asks `grow` before it makes more of the message."""
    limit_bytes = decompressed_limit_bytes(len(data), max_message_bytes)
    try:
        inflated = inflate(data, _WINDOW_BITS[encoding], limit_bytes, grow)
    except zlib.error as error:
        raise GrpcError(
            Status.INTERNAL, f"cannot decompress the {encoding} message: {error}"
        ) from None
    except NoMemoryLeftError:
        raise memory_full() from None
    if len(inflated.data) > limit_bytes:
        raise GrpcError(
            Status.RESOURCE_EXHAUSTED, f"decompressed message is larger than {limit_bytes} bytes"
        )
    if not inflated.is_complete or inflated.has_rest:
        raise GrpcError(
            Status.INTERNAL, f"the {encoding} message is cut short or followed by other data"
        )
    return as_array(inflated.data)


def compress_gzip(pieces: list[Buffer], level: int) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS["gzip"])
    return b"".join([*(compressor.compress(piece) for piece in pieces), compressor.flush()])
