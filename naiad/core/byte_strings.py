"""Codec for the data of BYTES tensors.

Each element is a 4-byte little-endian length followed by that many bytes. Elements are in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

_LENGTH = struct.Struct("<I")


def encode_byte_strings(elements: Iterable[Any]) -> bytes:
    """Encodes bytes as they are and everything else as the UTF-8 of its `str()`.

    A numpy array is read in C order.
    """
    if isinstance(elements, np.ndarray):
        elements = elements.ravel().tolist()
    parts: list[bytes] = []
    for element in elements:
        if isinstance(element, (bytearray, memoryview)):
            element = bytes(element)
        elif not isinstance(element, bytes):
            element = str(element).encode()
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def split_byte_strings(data: bytes | bytearray | memoryview) -> list[bytes]:
    """Raises ValueError if a length points past the end of the data."""
    return next(split_byte_string_pieces(data, len(data)), [])


def split_byte_string_pieces(
    data: bytes | bytearray | memoryview, max_elements: int
) -> Iterator[list[bytes]]:
    """Yields the elements, at most `max_elements` at a time. Raises ValueError if a length points
    past the end of the data."""
    view, end, offset = memoryview(data), len(data), 0
    elements: list[bytes] = []
    while offset < end:
        if len(elements) >= max_elements:
            yield elements
            elements = []
        if offset + 4 > end:
            raise ValueError(
                f"incomplete string length indicator: {end - offset} bytes left, expected 4"
            )
        (size,) = _LENGTH.unpack_from(view, offset)
        offset += 4
        if offset + size > end:
            raise ValueError(f"incomplete string data: {end - offset} bytes left, expected {size}")
        elements.append(bytes(view[offset : offset + size]))
        offset += size
    if elements:
        yield elements


class EqualRun(NamedTuple):
    """Elements of one length that follow each other."""

    num_elements: int
    num_bytes: int
    may_continue: bool
    """The run was not at its end when the search ended."""


_MAX_RUN = 65_536
_NO_RUN = EqualRun(0, 0, False)


def count_equal(data: memoryview, offset: int, max_count: int) -> EqualRun:
    """Counts the complete elements from `offset` on that are as long as the first of them, without
    a loop in Python."""
    size = int.from_bytes(data[offset : offset + 4], "little")
    stride = size + 4
    most = min((len(data) - offset) // stride, max_count, _MAX_RUN)
    if most < 2:
        return _NO_RUN
    octets = np.frombuffer(data, np.uint8, most * stride, offset).reshape(most, stride)
    sizes = np.ascontiguousarray(octets[:, :4]).view("<u4").ravel()
    others = np.flatnonzero(sizes != size)
    count = int(others[0]) if len(others) else most
    return EqualRun(count, count * stride, count == most)


def decode_byte_strings(data: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    elements = split_byte_strings(data)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
