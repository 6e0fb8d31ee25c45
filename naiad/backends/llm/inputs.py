"""The input tensors of one request to a language model, by name: scalars, strings, lists. Batch
dimensions of one are looked through."""

from __future__ import annotations

from typing import Any

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.tensor import Tensor
from naiad.errors import NaiadError, invalid_arg
from naiad.ipc.work import WorkRequest


class Inputs:
    def __init__(self, request: WorkRequest) -> None:
        self._tensors = {tensor.name: tensor for tensor in request.inputs}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @property
    def names(self) -> list[str]:
        return list(self._tensors)

    def array(self, name: str) -> np.ndarray[Any, Any] | None:
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.as_numpy()

    def texts(self, name: str) -> list[str]:
        array = self.array(name)
        return (
            [] if array is None else [_decoded(name, element) for element in array.ravel().tolist()]
        )

    def text(self, name: str) -> str | None:
        """Of a tensor with one element. Raises NaiadError."""
        value = self.scalar(name)
        return None if value is None else _decoded(name, value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.scalar(name)
        return default if value is None else bool(value)

    def scalar(self, name: str) -> Any:
        array = self.array(name)
        if array is None:
            return None
        if array.size != 1:
            raise invalid_arg(f"input '{name}' has {array.size} elements, expected 1")
        return array.ravel()[0] if array.dtype == np.object_ else array.ravel()[0].item()

    def integers(self, name: str) -> list[int] | None:
        array = self.array(name)
        return None if array is None else [int(value) for value in array.ravel().tolist()]


def _decoded(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise not_utf8(name) from None


def not_utf8(name: str) -> NaiadError:
    return invalid_arg(f"input '{name}' is not UTF-8 text")


# Outputs.


def text_tensor(name: str, values: list[str]) -> Tensor:
    return Tensor(name, "BYTES", [len(values)], encode_byte_strings(values))


def number_tensor(
    name: str, datatype: str, values: list[int] | list[float], shape: list[int] | None = None
) -> Tensor:
    dtype = {"INT32": np.int32, "UINT32": np.uint32, "INT64": np.int64, "FP32": np.float32}[
        datatype
    ]
    return Tensor(
        name,
        datatype,
        [len(values)] if shape is None else shape,
        np.asarray(values, dtype).tobytes(),
    )
