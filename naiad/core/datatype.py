"""Triton's tensor datatypes: wire name, config.pbtxt name, element size and numpy equivalent.

Requests name a datatype by its wire name ("FP32"). Only this table knows what a name means.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np


class DataType(msgspec.Struct, frozen=True):
    name: str
    config_name: str
    config_number: int
    byte_size: int
    """Bytes per element; 0 for BYTES, whose elements carry their own length."""
    numpy: np.dtype[Any] | None
    """None if numpy has no equivalent (BF16). BYTES tensors are object arrays of bytes."""


def _table() -> dict[str, DataType]:
    rows: list[tuple[str, str, int, int, Any]] = [
        ("BOOL", "TYPE_BOOL", 1, 1, np.bool_),
        ("UINT8", "TYPE_UINT8", 2, 1, np.uint8),
        ("UINT16", "TYPE_UINT16", 3, 2, np.uint16),
        ("UINT32", "TYPE_UINT32", 4, 4, np.uint32),
        ("UINT64", "TYPE_UINT64", 5, 8, np.uint64),
        ("INT8", "TYPE_INT8", 6, 1, np.int8),
        ("INT16", "TYPE_INT16", 7, 2, np.int16),
        ("INT32", "TYPE_INT32", 8, 4, np.int32),
        ("INT64", "TYPE_INT64", 9, 8, np.int64),
        ("FP16", "TYPE_FP16", 10, 2, np.float16),
        ("FP32", "TYPE_FP32", 11, 4, np.float32),
        ("FP64", "TYPE_FP64", 12, 8, np.float64),
        ("BYTES", "TYPE_STRING", 13, 0, np.object_),
        ("BF16", "TYPE_BF16", 14, 2, None),
    ]
    return {
        name: DataType(name, config_name, number, size, None if kind is None else np.dtype(kind))
        for name, config_name, number, size, kind in rows
    }


DATATYPES: dict[str, DataType] = _table()
BY_CONFIG_NAME: dict[str, DataType] = {d.config_name: d for d in DATATYPES.values()}
BY_CONFIG_NUMBER: dict[int, DataType] = {d.config_number: d for d in DATATYPES.values()}
BY_NUMPY: dict[Any, DataType] = {d.numpy: d for d in DATATYPES.values() if d.numpy is not None}


def from_numpy(dtype: np.dtype[Any]) -> DataType | None:
    """Returns BYTES for object, bytes and str arrays, and None if Triton has no such datatype."""
    if dtype.kind in "OSU":
        return DATATYPES["BYTES"]
    return BY_NUMPY.get(dtype)
