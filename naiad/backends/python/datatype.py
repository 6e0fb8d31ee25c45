"""The datatype functions of `triton_python_backend_utils`.

They convert TYPE_* names and Triton's numbers to numpy types, and encode byte-string tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from naiad.core.byte_strings import decode_byte_strings, encode_byte_strings
from naiad.core.datatype import BY_CONFIG_NAME, BY_CONFIG_NUMBER, from_numpy

TRITON_STRING_TO_NUMPY: dict[str, type[Any]] = {
    # Triton returns the built-in bool, and models compare with it. BF16 is missing because numpy
    # has no such type.
    name: bool if name == "TYPE_BOOL" else datatype.numpy.type
    for name, datatype in BY_CONFIG_NAME.items()
    if datatype.numpy is not None
}


def triton_string_to_numpy(triton_type_string: str) -> type[Any]:
    """Raises KeyError if the name has no numpy type."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type[Any] | None:
    datatype = BY_CONFIG_NUMBER.get(data_type)
    return None if datatype is None or datatype.numpy is None else datatype.numpy.type


def numpy_to_triton_type(data_type: Any) -> int | None:
    try:
        dtype = np.dtype(data_type)
    except TypeError:
        return None
    datatype = None if dtype.kind == "U" else from_numpy(dtype)
    return None if datatype is None else datatype.config_number


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes | None:
    """Encodes each element after its length, in C order.

    Returns None if the array does not contain byte strings.
    """
    if input_tensor.size == 0:
        return b""
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_byte_strings(input_tensor)


def deserialize_bytes_tensor(
    encoded_tensor: bytes | bytearray | memoryview,
) -> np.ndarray[Any, Any]:
    return decode_byte_strings(encoded_tensor)
