"""Compresses and decompresses messages with gzip and deflate. Decompression stops at a limit, so a
small message cannot become an arbitrarily large one."""

from __future__ import annotations

import zlib
from typing import TypeAlias

from naiad.transport.grpc.status import GrpcError, Status
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


def decompress(data: Buffer, encoding: str, max_message_bytes: int) -> bytes:
    limit_bytes = decompressed_limit_bytes(len(data), max_message_bytes)
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        message = decompressor.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise GrpcError(
            Status.INTERNAL, f"cannot decompress the {encoding} message: {error}"
        ) from None
    if len(message) > limit_bytes:
        raise GrpcError(
            Status.RESOURCE_EXHAUSTED, f"decompressed message is larger than {limit_bytes} bytes"
        )
    if not decompressor.eof or decompressor.unused_data:
        raise GrpcError(
            Status.INTERNAL, f"the {encoding} message is cut short or followed by other data"
        )
    return message


def compress_gzip(pieces: list[Buffer], level: int) -> bytes:
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS["gzip"])
    return b"".join([*(compressor.compress(piece) for piece in pieces), compressor.flush()])
