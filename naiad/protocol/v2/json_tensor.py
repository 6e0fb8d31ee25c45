"""Tensor data in JSON: lists of values <-> the bytes of a tensor.

`pack_json` packs the common case, raw JSON of a list or of lists nested to one depth, straight into
bytes. `pack_values` packs values that were parsed already, nested in any way, and reports faults
with Triton's messages. `json_values` is the reverse: a flat list, ready for the encoder.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np

from naiad.core.byte_strings import (
    encode_byte_strings,
    split_byte_string_pieces,
    split_byte_strings,
)
from naiad.core.datatype import DATATYPES
from naiad.core.tensor import Buffer, Tensor
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_access import is_signed, is_unsigned, mismatch, parse_error

_ELEMENTS: dict[str, type] = {
    "BOOL": bool, "UINT8": int, "UINT16": int, "UINT32": int, "UINT64": int, "INT8": int,
    "INT16": int, "INT32": int, "INT64": int,
    "FP32": float, "FP64": float, "BYTES": str,
}  # fmt: skip
_FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b",
    "INT16": "h", "INT32": "i", "INT64": "q",
    "FP32": "f", "FP64": "d",
}  # fmt: skip
_MAX_PACKED = 256
"""`struct` is faster than `array` up to this number of values."""

_OPENING = re.compile(rb"\[[\[ \t\r\n]*")
_MAX_NESTED = 16
MAX_DEPTH = 100
"""Triton refuses data in this number of lists or more. Other fields may be nested in any way."""

Decode: TypeAlias = Callable[[Buffer], list[Any]]
Pack: TypeAlias = Callable[..., bytes]


@lru_cache(maxsize=1024)
def _struct(datatype: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{_FORMATS[datatype]}")


@lru_cache(maxsize=128)
def _decoder(element: type, depth: int) -> Decode:
    """Decodes nested lists into a flat list."""
    kind: Any = element
    for _ in range(depth):
        kind = list[kind]
    decode: Decode = msgspec.json.Decoder(kind).decode
    return decode if depth == 1 else partial(_decode_nested, decode, depth)


def _decode_nested(decode: Decode, depth: int, raw: Buffer) -> list[Any]:
    values = decode(raw)
    for _ in range(depth - 1):
        values = list(chain.from_iterable(values))
    return values


def nesting(raw: Buffer) -> int:
    """The number of nested lists that a value begins with."""
    opening = _OPENING.match(raw)
    if opening is None:
        return 0
    return 1 if opening.end() == 1 else opening[0].count(b"[")


def pack_json(raw: Buffer, datatype: str, count: int) -> bytes | None:
    """Packs exactly `count` values that fit the datatype, in a list or in lists nested to one
    depth. Returns None for anything else, which `pack_values` handles."""
    element, depth = _ELEMENTS.get(datatype), nesting(raw)
    if element is None or not 1 <= depth <= _MAX_NESTED:
        return None
    try:
        values = _decoder(element, depth)(raw)
        if len(values) != count:
            return None
        if datatype == "BYTES":
            return encode_byte_strings(values)
        if count <= _MAX_PACKED:
            return _struct(datatype, count).pack(*values)
        return bytes(values) if datatype == "BOOL" else array(_FORMATS[datatype], values).tobytes()
    except (msgspec.MsgspecError, struct.error, OverflowError, UnicodeError):
        return None


def numbers_from_json(datatype: str, count: int, depth: int) -> tuple[Decode, Pack] | None:
    """The two steps of `pack_json` for numbers, looked up once: `pack(*decode(raw))`. They raise
    where `pack_json` returns None. Returns None for datatypes that are not numbers."""
    if datatype not in _FORMATS:
        return None
    return _decoder(_ELEMENTS[datatype], depth), _struct(
        datatype, count
    ).pack if count <= _MAX_PACKED else partial(_pack_many, datatype, count)


def _pack_many(datatype: str, count: int, *values: Any) -> bytes:
    if len(values) != count:
        raise struct.error("another number of values")
    return bytes(values) if datatype == "BOOL" else array(_FORMATS[datatype], values).tobytes()


def pack_values(data: Any, datatype: str, count: int, name: str) -> bytes:
    """Packs parsed data: a value, or lists nested in any way. The number of strings is not checked.
    Raises NaiadError with Triton's messages."""
    check_packable(datatype, name)
    values = flatten(data)
    if datatype == "BYTES":
        return _pack_strings(values)
    check_types(values[:count], datatype)
    check_count(len(values), count, name)
    return pack_numbers(values, datatype)


def check_packable(datatype: str, name: str) -> None:
    if datatype in ("FP16", "BF16"):
        raise invalid_arg(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )


def check_count(num_values: int, expected: int, name: str) -> None:
    """Triton's text does not have the numbers, and its status is 500."""
    if num_values != expected:
        fault = (
            "Unable to parse 'data': Shape does not match true shape of 'data' field"
            if num_values > expected
            else "Failed to parse 'data' field: shape does not match true shape"
        )
        raise invalid_arg(
            f"{fault}: expected {expected} values for input '{name}', got {num_values}"
        )


def flatten(data: Any) -> list[Any]:
    """Visits each value and each list once, however they are nested. Raises NaiadError for lists
    that are nested too deeply."""
    if not isinstance(data, list):
        return [data]
    nested: list[Any] = data
    depth = 1
    kinds = set(map(type, nested))
    while kinds == {list}:
        depth += 1
        check_depth(depth)
        nested = list(chain.from_iterable(nested))
        kinds = set(map(type, nested))
    if list not in kinds:
        return nested
    values: list[Any] = []
    lists = [iter(nested)]
    while lists:
        for item in lists[-1]:
            if type(item) is list:
                check_depth(depth + len(lists))
                lists.append(iter(item))
                break
            values.append(item)
        else:
            lists.pop()
    return values


def check_depth(depth: int) -> None:
    """`depth` is the number of lists around a value."""
    if depth >= MAX_DEPTH:
        raise depth_error()


def depth_error() -> NaiadError:
    return invalid_arg(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def element_decoder(datatype: str) -> Decode:
    """Decodes a flat list of elements of a datatype that JSON can express."""
    return _decoder(_ELEMENTS[datatype], 1)


def number_format(datatype: str) -> str:
    """The format of a number in `struct` and `array`."""
    return _FORMATS[datatype]


def _pack_strings(values: list[Any]) -> bytes:
    if not all(isinstance(value, str) for value in values):
        raise internal(f"Unable to parse JSON bytes array: {mismatch('string')}")
    return encode_byte_strings(text_bytes(value) for value in values)


def text_bytes(text: str) -> bytes:
    """The bytes that the client sent. A lone surrogate that came from no byte becomes a question
    mark."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def check_types(values: list[Any], datatype: str) -> None:
    types = set(map(type, values))
    if datatype == "BOOL":
        if types - {bool}:
            raise parse_error("data", mismatch("boolean"))
    elif datatype[0] == "F":
        if types - {int, float}:
            raise parse_error("data", mismatch("number"))
    elif datatype[0] == "U":
        if not all(map(is_unsigned, values)):
            raise parse_error("data", mismatch("unsigned-integer"))
    elif not all(map(is_signed, values)):
        raise parse_error("data", mismatch("signed-integer"))


def pack_numbers(values: list[Any], datatype: str) -> bytes:
    """Integers that are too large wrap around and floats become infinite, as in Triton."""
    if datatype == "BOOL":
        return bytes(values)
    if datatype[0] == "F":
        try:
            return array(_FORMATS[datatype], map(float, values)).tobytes()
        except OverflowError:
            raise invalid_arg(
                "Unable to parse 'data': Number too big to be stored in double."
            ) from None
    widest = np.uint64 if datatype[0] == "U" else np.int64
    return np.array(values, widest).astype(DATATYPES[datatype].numpy).tobytes()


def json_values(tensor: Tensor) -> Sequence[Any]:
    """The values in C order; bytes that are not UTF-8 become `surrogateescape` strings. Raises
    NaiadError for FP16 and BF16."""
    data = tensor.data
    if tensor.datatype == "BYTES":
        return [element.decode("utf-8", "surrogateescape") for element in split_byte_strings(data)]
    if tensor.datatype not in _FORMATS:
        raise _no_json_format(tensor)
    count = len(data) // DATATYPES[tensor.datatype].byte_size
    if count <= _MAX_PACKED:
        return _struct(tensor.datatype, count).unpack(data)
    return _read_many(tensor.datatype, data)


_PIECE_VALUES = 16_384
PIECE_BYTES = 1 << 20


class LongText(msgspec.Struct, frozen=True):
    """One string that is too long to be written at once."""

    data: memoryview

    def parts(self) -> Iterator[str]:
        """Cut between characters."""
        start, end = 0, len(self.data)
        while start < end:
            stop = min(start + PIECE_BYTES, end)
            # The bytes of a character behind its first begin with the bits 10; there are at most 3.
            lead = next((at for at in range(stop, stop - 4, -1) if self._is_lead(at)), stop)
            yield bytes(self.data[start:lead]).decode("utf-8", "surrogateescape")
            start = lead

    def _is_lead(self, at: int) -> bool:
        return at == len(self.data) or self.data[at] & 0xC0 != 0x80


def json_value_pieces(tensor: Tensor) -> Iterator[Sequence[Any] | LongText]:
    """The values of `json_values`, some at a time."""
    data = memoryview(tensor.data)
    if tensor.datatype == "BYTES":
        for elements in split_byte_string_pieces(data, _PIECE_VALUES, PIECE_BYTES):
            if isinstance(elements[0], memoryview):
                yield LongText(elements[0])
                continue
            yield [element.decode("utf-8", "surrogateescape") for element in elements]
        return
    size = _PIECE_VALUES * DATATYPES[tensor.datatype].byte_size
    for start in range(0, len(data), size):
        yield _read_many(tensor.datatype, data[start : start + size])


def check_json_format(tensor: Tensor) -> None:
    """Raises NaiadError for FP16 and BF16."""
    if tensor.datatype != "BYTES" and tensor.datatype not in _FORMATS:
        raise _no_json_format(tensor)


def numbers_of(datatype: str, num_bytes: int) -> Callable[[Buffer], Sequence[Any]] | None:
    """Reads the data of a tensor of `num_bytes` as `json_values` does, looked up once. None for
    datatypes that are not numbers."""
    if datatype not in _FORMATS:
        return None
    count = num_bytes // DATATYPES[datatype].byte_size
    return (
        _struct(datatype, count).unpack if count <= _MAX_PACKED else partial(_read_many, datatype)
    )


def _read_many(datatype: str, data: Buffer) -> Sequence[Any]:
    return np.frombuffer(data, DATATYPES[datatype].numpy).tolist()  # type: ignore[no-any-return]


def _no_json_format(tensor: Tensor) -> NaiadError:
    return invalid_arg(
        f"sending {tensor.datatype} data via JSON is not supported. Please use the binary data "
        f"format for output {tensor.name}"
    )
