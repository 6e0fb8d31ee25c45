"""Arrays of every datatype, and inputs for tritonclient's HTTP and gRPC clients, including old
releases."""

from __future__ import annotations

from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np


def bfloat16(values: list[float]) -> np.ndarray[Any, Any]:
    """Returns an array for a BF16 input. numpy has no such type: new clients use ml_dtypes; old
    ones truncate float32 to 16 bits."""
    if int(metadata.version("tritonclient").split(".")[1]) < 70:
        return np.array(values, np.float32)
    import ml_dtypes

    return np.array(values, ml_dtypes.bfloat16)


ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "BOOL": np.array([True, False, True]),
    "UINT8": np.array([0, 1, 255], np.uint8),
    "UINT16": np.array([0, 1, 65535], np.uint16),
    "UINT32": np.array([0, 1, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 1, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 0, 127], np.int8),
    "INT16": np.array([-(2**15), 0, 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 0, 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 0, 2**63 - 1], np.int64),
    "FP16": np.array([-1.5, 0.5, 65504], np.float16),
    "FP32": np.array([-1.5, np.nan, np.inf], np.float32),
    "FP64": np.array([-1.5, np.nan, -np.inf], np.float64),
    "BYTES": np.array([b"", b"\x00\xff\x00", "näiad".encode()], dtype=np.object_),
    "BF16": bfloat16([-1.5, 0.5, 3.0]),
}

JSON_TYPES = [name for name in ARRAYS if name not in ("FP16", "BF16", "BYTES", "FP32", "FP64")]
ROW = np.arange(16, dtype=np.float32).reshape(1, 16)


def typed_input(client: ModuleType, datatype: str, **options: Any) -> Any:
    array = ARRAYS[datatype]
    tensor = client.InferInput(f"IN_{datatype}", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, **options)
    return tensor


def add_sub_inputs(
    client: ModuleType,
    left: np.ndarray[Any, Any] = ROW,
    right: np.ndarray[Any, Any] = ROW,
    **options: Any,
) -> list[Any]:
    tensors = []
    for name, array in (("INPUT0", left), ("INPUT1", right)):
        tensor = client.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array, **options)
        tensors.append(tensor)
    return tensors


def text_input(client: ModuleType, name: str, *texts: str) -> Any:
    tensor = client.InferInput(name, [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], dtype=np.object_))
    return tensor


def number_input(client: ModuleType, name: str, *numbers: int) -> Any:
    tensor = client.InferInput(name, [len(numbers)], "INT32")
    tensor.set_data_from_numpy(np.array(numbers, np.int32))
    return tensor


def is_same(got: np.ndarray[Any, Any] | None, want: np.ndarray[Any, Any]) -> bool:
    return (
        got is not None
        and got.dtype == want.dtype
        and np.array_equal(got, want, equal_nan=want.dtype.kind == "f")
    )
