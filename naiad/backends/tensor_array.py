"""Converts tensors of requests to numpy arrays for frameworks, and back.

BYTES become object arrays of bytes. BF16 becomes uint16 bit patterns, and the backend gives the
framework the right type. Numbers are not copied, unless they are misaligned: frameworks may read
them with aligned instructions.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from naiad.core.byte_strings import decode_byte_strings, encode_byte_strings
from naiad.core.datatype import DATATYPES, from_numpy
from naiad.core.tensor import Tensor
from naiad.errors import internal

Array: TypeAlias = np.ndarray[Any, Any]

_UINT16 = np.dtype(np.uint16)


def array_dtype(datatype: str) -> np.dtype[Any]:
    return DATATYPES[datatype].numpy or _UINT16


def to_array(data: bytes | bytearray | memoryview, datatype: str, shape: list[int]) -> Array:
    if datatype == "BYTES":
        return decode_byte_strings(data).reshape(shape)
    array = np.frombuffer(data, array_dtype(datatype)).reshape(shape)
    return array if array.flags.aligned else array.copy()


def to_tensor(name: str, array: Array, datatype: str, shape: list[int]) -> Tensor:
    """Returns the array as a tensor. An array in C order is not copied."""
    if datatype == "BYTES":
        return Tensor(name, datatype, shape, encode_byte_strings(array))
    return Tensor(name, datatype, shape, flat_bytes(array))


def flat_bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def require_type(name: str, array: Array, datatype: str) -> None:
    """Raises NaiadError if the model's output does not have the datatype of the config."""
    actual = from_numpy(array.dtype)
    if actual is None or (
        actual.name != datatype and not (datatype == "BF16" and array.dtype == _UINT16)
    ):
        shown = f"TYPE_{array.dtype}" if actual is None else actual.config_name
        raise internal(
            f"unexpected datatype {shown} for inference output '{name}', expecting "
            f"{DATATYPES[datatype].config_name}"
        )
