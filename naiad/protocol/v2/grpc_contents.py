"""Typed contents of an input (int_contents, fp32_contents, ...) -> the raw bytes of its tensor."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.pb.grpc_service_pb2 import ModelInferRequest
from naiad.protocol.v2.grpc_wire import Buffer

_FIELDS: Final[dict[str, dict[str, tuple[Any, Any]]]] = {
    # field -> datatype it may carry -> (numpy type of the field, numpy type of the tensor)
    "bool_contents": {"BOOL": (np.bool_, np.bool_)},
    "int_contents": {
        "INT32": (np.int32, np.int32),
        "INT16": (np.int32, np.int16),
        "INT8": (np.int32, np.int8),
    },
    "int64_contents": {"INT64": (np.int64, np.int64)},
    "uint_contents": {
        "UINT32": (np.uint32, np.uint32),
        "UINT16": (np.uint32, np.uint16),
        "UINT8": (np.uint32, np.uint8),
    },
    "uint64_contents": {"UINT64": (np.uint64, np.uint64)},
    "fp32_contents": {"FP32": (np.float32, np.float32)},
    "fp64_contents": {"FP64": (np.float64, np.float64)},
    "bytes_contents": {"BYTES": (None, None)},
}


def raw_contents(tensor: ModelInferRequest.InferInputTensor, model_name: str) -> bytes:
    """Values that do not fit the tensor's narrower type lose their upper bits, as under Triton."""
    data = b""
    is_set = False
    for field, types in _FIELDS.items():
        values = getattr(tensor.contents, field)
        if not values:
            continue
        if is_set:
            raise invalid_arg(f"{_subject(tensor, model_name)}, binary data was already supplied.")
        if tensor.datatype not in types:
            raise _wrong_field(tensor, model_name, next(iter(types)))
        field_type, tensor_type = types[tensor.datatype]
        data = (
            encode_byte_strings(values)
            if field_type is None
            else np.array(values, field_type).astype(tensor_type).tobytes()
        )
        is_set = True
    return data


class LargeContents:
    """Typed contents as they are on the wire, by field. Millions of single values make one buffer,
    not millions of objects."""

    def __init__(self) -> None:
        self.numbers: dict[int, Buffer] = {}
        """Numbers one after the other, packed or not."""
        self.strings = bytearray()
        """The elements of bytes_contents, as in a BYTES tensor."""

    def add_numbers(self, field: int, part: Buffer) -> None:
        numbers = self.numbers.get(field)
        if numbers is None:
            self.numbers[field] = part
        elif isinstance(numbers, bytearray):
            numbers += part
        else:
            self.numbers[field] = bytearray(numbers) + part


_FIELD_NUMBERS: Final = {
    "bool_contents": 1,
    "int_contents": 2,
    "int64_contents": 3,
    "uint_contents": 4,
    "uint64_contents": 5,
    "fp32_contents": 6,
    "fp64_contents": 7,
    "bytes_contents": 8,
}
FIXED_BYTES: Final = {6: 4, 7: 8}
"""The size of the numbers that are not varints, by field."""
_VARINT_SLICE_BYTES: Final = 128 * 1024


def large_raw_contents(
    tensor: ModelInferRequest.InferInputTensor, model_name: str, contents: LargeContents
) -> Buffer:
    """Equal to `raw_contents`, but from the wire and in small steps."""
    data: Buffer = b""
    is_set = False
    for field, types in _FIELDS.items():
        number = _FIELD_NUMBERS[field]
        part: Buffer = contents.strings if number == 8 else contents.numbers.get(number, b"")
        if not len(part):
            continue
        if is_set:
            raise invalid_arg(f"{_subject(tensor, model_name)}, binary data was already supplied.")
        if tensor.datatype not in types:
            raise _wrong_field(tensor, model_name, next(iter(types)))
        data = part
        if number in FIXED_BYTES:
            if len(data) % FIXED_BYTES[number]:
                raise internal("Unable to parse request")
        elif number != 8:
            data = _read_varints(part, types[tensor.datatype][1])
        is_set = True
    return data


def _read_varints(part: Buffer, tensor_type: Any) -> Buffer:
    data = bytearray()
    start = 0
    while start < len(part):
        octets = np.frombuffer(part, np.uint8)[start : start + _VARINT_SLICE_BYTES]
        ends = np.flatnonzero(octets < 128)
        if not len(ends):
            raise internal("Unable to parse request")
        data += _varints(octets[: ends[-1] + 1], ends).astype(tensor_type).tobytes()
        start += int(ends[-1]) + 1
    return data


def _varints(octets: Any, ends: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    starts = np.concatenate(([0], ends[:-1] + 1))
    sizes = ends - starts + 1
    if sizes.max() > 10:
        raise internal("Unable to parse request")
    values = np.zeros(len(ends), np.uint64)
    for index in range(int(sizes.max())):
        longer = np.flatnonzero(sizes > index)
        bits = (octets[starts[longer] + index] & 127).astype(np.uint64)
        values[longer] |= bits << np.uint64(7 * index)
    return values


def _wrong_field(
    tensor: ModelInferRequest.InferInputTensor, model_name: str, expected: str
) -> NaiadError:
    return invalid_arg(
        f"{_subject(tensor, model_name)} of type '{expected}', expected datatype "
        f"'{tensor.datatype}'"
    )


def _subject(tensor: ModelInferRequest.InferInputTensor, model_name: str) -> str:
    return (
        f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model_name}'"
    )
