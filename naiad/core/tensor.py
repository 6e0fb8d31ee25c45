"""A tensor as it travels between frontends, core and workers: name, datatype, shape, raw bytes.

`data` is C-ordered little-endian; BYTES elements are each a 4-byte little-endian length and the
bytes (Triton's wire form). It may be any bytes-like object, also a view into an arena: whoever
holds `data` keeps that memory alive, nobody frees it by hand.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from naiad.core.byte_strings import decode_byte_strings, encode_byte_strings
from naiad.core.datatype import DATATYPES, from_numpy
from naiad.errors import invalid_arg

Buffer: TypeAlias = bytes | bytearray | memoryview


class SlotRef(msgspec.Struct, array_like=True, frozen=True):
    """Where the data of a tensor lies in shared memory (naiad.shm.arena). Exists only inside
    messages between processes."""

    slot: int
    offset: int
    size: int
    is_mine: bool = False
    """The slot belongs to the receiver of the message: it is handed back memory that it had
    lent."""


REFERENCE: type[object] = SlotRef
"""For a look at a tensor that has just been received: `tensor.data.__class__ is REFERENCE`."""

if TYPE_CHECKING:
    TensorData: TypeAlias = Buffer
else:
    # What msgspec makes of it when a message is read: inline data is writable, as models expect of
    # their inputs.
    TensorData = bytearray | SlotRef


class Tensor(msgspec.Struct, array_like=True):
    name: str
    datatype: str
    shape: list[int]
    data: TensorData

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """A view where the datatype allows it; BYTES become an object array; BF16 comes as its
        uint16 bit patterns."""
        if self.datatype == "BYTES":
            return decode_byte_strings(self.data).reshape(self.shape)
        dtype = DATATYPES[self.datatype].numpy or np.dtype(np.uint16)
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def element_count(self) -> int:
        return prod(self.shape)


def tensor_from_numpy(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    datatype = from_numpy(array.dtype)
    if datatype is None:
        raise invalid_arg(
            f"tensor '{name}' has numpy type '{array.dtype}', which has no Triton datatype"
        )
    if datatype.name == "BYTES":
        return Tensor(name, "BYTES", list(array.shape), encode_byte_strings(array))
    return Tensor(name, datatype.name, list(array.shape), np.ascontiguousarray(array).tobytes())
