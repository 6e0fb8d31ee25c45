"""Decompresses gzip and zlib data piece by piece, so that its memory is counted before it is
allocated and never exceeds a limit."""

from __future__ import annotations

import zlib
from typing import TypeAlias

import msgspec
import numpy as np

from naiad.core.memory_budget import Grow

Buffer: TypeAlias = bytes | bytearray | memoryview

_PIECE_BYTES = 256 * 1024
_INPUT_BYTES = 64 * 1024


class NoMemoryLeftError(Exception):
    """The memory budget has no room for the decompressed data."""


class Inflated(msgspec.Struct, frozen=True):
    data: bytearray
    """At most one byte more than the limit: a longer result is cut there."""
    is_complete: bool
    """The compressed data ends where it should."""
    has_rest: bool
    """Other data follows the compressed data."""


def inflate(data: Buffer, window_bits: int, max_bytes: int, grow: Grow) -> Inflated:
    """Raises zlib.error for data that is not compressed, and NoMemoryLeftError when `grow` refuses
    a piece."""
    decompressor = zlib.decompressobj(window_bits)
    view = memoryview(data)
    out = bytearray()
    offset, rest = 0, b""
    while not decompressor.eof and len(out) <= max_bytes:
        if not rest:
            # zlib copies what it leaves unread, so it gets little at a time.
            rest = view[offset : offset + _INPUT_BYTES].tobytes()
            offset += len(rest)
            if not rest:
                break
        size = min(_PIECE_BYTES, max_bytes + 1 - len(out))
        if not grow(size):
            raise NoMemoryLeftError
        out += decompressor.decompress(rest, size)
        rest = decompressor.unconsumed_tail
    has_rest = bool(decompressor.unused_data) or (decompressor.eof and offset < len(view))
    return Inflated(out, decompressor.eof, has_rest)


def always(num_bytes: int) -> bool:
    """Grants every piece."""
    return True


def as_array(data: bytearray) -> memoryview:
    """A view of the data whose life the memory budget can watch."""
    return np.frombuffer(data, np.uint8).data
