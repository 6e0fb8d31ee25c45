"""Codec for the data of BYTES tensors.

Each element is a 4-byte little-endian length followed by that many bytes. Elements are in C order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

_LENGTH = struct.Struct("<I")
_GROUP = 4096
_SHORT_BYTES = 256
MIN_RUN_BYTES = 1024
RUN_INTERVAL = 256
"""The number of elements after which to look for a run of equal lengths again."""


def encode_byte_strings(elements: Iterable[Any]) -> bytes:
    """Encodes bytes as they are and everything else as the UTF-8 of its `str()`.

    A numpy array is read in C order.
    """
    if isinstance(elements, np.ndarray):
        elements = elements.ravel().tolist()
    rest = iter(elements)
    pieces: list[bytes] = []
    # In groups, because a list of all lengths takes ten times the memory of short elements.
    while group := list(islice(rest, _GROUP)):
        pieces.append(_encode_group(group))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _encode_group(elements: list[Any]) -> bytes:
    if set(map(type, elements)) != {bytes}:
        elements = [_element_bytes(element) for element in elements]
    sizes = list(map(len, elements))
    if sizes.count(sizes[0]) == len(sizes):
        length = _LENGTH.pack(sizes[0])
        return length + length.join(elements)
    return b"".join(chain.from_iterable(zip(map(_LENGTH.pack, sizes), elements, strict=True)))


def _element_bytes(element: Any) -> bytes:
    if isinstance(element, (bytes, bytearray, memoryview)):
        return bytes(element)
    return str(element).encode()


def split_byte_strings(data: bytes | bytearray | memoryview) -> list[bytes]:
    """Raises ValueError if a length points past the end of the data."""
    return next(split_byte_string_pieces(data, len(data)), [])


def split_byte_string_pieces(
    data: bytes | bytearray | memoryview, max_elements: int, max_bytes: int = 0
) -> Iterator[list[Any]]:
    """Yields the elements, at most `max_elements` at a time, and at most about `max_bytes` unless
    that is 0. An element that is longer is a piece of its own, as a view. Raises ValueError if a
    length points past the end of the data."""
    view, end, offset = memoryview(data), len(data), 0
    max_bytes = max_bytes or end
    elements: list[bytes] = []
    piece_end = max_bytes
    num_read, next_run = 0, RUN_INTERVAL
    while offset < end:
        if len(elements) >= max_elements or offset >= piece_end:
            if elements:
                yield elements
            elements, piece_end = [], offset + max_bytes
        if num_read >= next_run and end - offset > MIN_RUN_BYTES:
            stride = 4 + int.from_bytes(view[offset : offset + 4], "little")
            most = max(1, (piece_end - offset) // stride)
            run = count_equal(view, offset, min(max_elements - len(elements), most))
            elements += _equal_elements(view[offset : offset + run.num_bytes], run.num_elements)
            offset += run.num_bytes
            num_read += run.num_elements
            next_run = num_read + (0 if run.may_continue else RUN_INTERVAL)
            if run.num_elements:
                continue
        num_read += 1
        if offset + 4 > end:
            raise ValueError(
                f"incomplete string length indicator: {end - offset} bytes left, expected 4"
            )
        (size,) = _LENGTH.unpack_from(view, offset)
        offset += 4
        if offset + size > end:
            raise ValueError(f"incomplete string data: {end - offset} bytes left, expected {size}")
        if size > max_bytes:
            if elements:
                yield elements
            yield [view[offset : offset + size]]
            elements, piece_end = [], offset + size + max_bytes
        else:
            elements.append(bytes(view[offset : offset + size]))
        offset += size
    if elements:
        yield elements


def _equal_elements(data: memoryview, count: int) -> list[bytes]:
    """Splits elements that all have the same length."""
    if len(data) == 4 * count:
        return [b""] * count
    stride = len(data) // count
    # A slice of bytes is made faster than one of a view; copies of long elements cost more.
    block = bytes(data) if stride <= _SHORT_BYTES else data
    return [bytes(block[offset : offset + stride - 4]) for offset in range(4, len(data), stride)]


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
