"""Codec for the data of BYTES tensors.

Each element is a 4-byte little-endian length followed by that many bytes. Elements are in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

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
    view, end, offset = memoryview(data), len(data), 0
    elements: list[bytes] = []
    while offset < end:
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
    return elements


def decode_byte_strings(data: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    elements = split_byte_strings(data)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
