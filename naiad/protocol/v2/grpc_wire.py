"""The parts of the protobuf wire format that grpc_codec.py reads and writes by hand: varints and
length-delimited fields."""

from __future__ import annotations

from typing import Final, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_MAX_VARINT_BYTES: Final = 10


class WireError(ValueError):
    """The bytes are not as expected; upb decides whether they are valid at all."""


def read_varint(data: Buffer, offset: int) -> tuple[int, int]:
    """The value and the offset after it. Raises IndexError at the end of the data."""
    value = shift = 0
    for _ in range(_MAX_VARINT_BYTES):
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
    raise WireError("varint too long")


def varint(value: int) -> bytes:
    if value < 0:
        value += 1 << 64
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + varint(len(content)) + content
