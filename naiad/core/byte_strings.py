"""BYTES tensors: each element is a 4-byte little-endian length and that many bytes, elements in C
order."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

_LENGTH = struct.Struct("<I")


def encode_byte_strings(elements: Iterable[Any]) -> bytes:
    """Elements are bytes, str (as UTF-8) or anything with a `str()`; numpy arrays are walked in C
    order."""
    if isinstance(elements, np.ndarray):
        elements = elements.ravel().tolist()
    parts: list[bytes] = []
    for element in elements:
        if not isinstance(element, bytes):
            element = (
                bytes(element)
                if isinstance(element, (bytearray, memoryview))
                else str(element).encode()
            )
        parts.append(_LENGTH.pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def split_byte_strings(data: bytes | bytearray | memoryview) -> list[bytes]:
    """Raises ValueError when a length points past the end."""
    view, end, at = memoryview(data), len(data), 0
    elements: list[bytes] = []
    while at < end:
        if at + 4 > end:
            raise ValueError(
                f"incomplete string length indicator: {end - at} bytes left, expected 4"
            )
        (size,) = _LENGTH.unpack_from(view, at)
        at += 4
        if at + size > end:
            raise ValueError(f"incomplete string data: {end - at} bytes left, expected {size}")
        elements.append(bytes(view[at : at + size]))
        at += size
    return elements


def decode_byte_strings(data: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    elements = split_byte_strings(data)
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array
