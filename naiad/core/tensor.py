"""A tensor as frontends, core and workers exchange it: name, datatype, shape and raw bytes.

`data` is in Triton's wire format: C order, little-endian, and BYTES elements as a 4-byte length and
the bytes. It may be any bytes-like object, including a view into an arena. A reference to `data`
keeps that memory alive; it is never freed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from naiad.core.byte_strings import decode_byte_strings, encode_byte_strings
from naiad.core.datatype import DATATYPES, from_numpy
from naiad.errors import invalid_arg

Buffer: TypeAlias = bytes | bytearray | memoryview


class SlotRef(msgspec.Struct, array_like=True, frozen=True):
    """The place of a tensor's data in shared memory (naiad.shm.arena).

    It exists only inside messages between processes.
    """

    slot: int
    offset: int
    size: int
    is_mine: bool = False
    """True if the slot belongs to the receiver of the message, who had lent it to the sender."""


REFERENCE: type[object] = SlotRef
"""The class of `data` in a received tensor whose data is in shared memory.

`tensor.data.__class__ is REFERENCE` tests for it, although mypy does not know the type.
"""

if TYPE_CHECKING:
    TensorData: TypeAlias = Buffer
else:
    # What msgspec decodes from a message. Inline data is a bytearray because models expect to be
    # able to write to their inputs.
    TensorData = bytearray | SlotRef


class Tensor(msgspec.Struct, array_like=True):
    name: str
    datatype: str
    shape: list[int]
    data: TensorData

    def as_numpy(self) -> np.ndarray[Any, Any]:
        """Returns a view of the data, except for BYTES, which become a new object array.

        BF16, which numpy lacks, is viewed as uint16 bit patterns.
        """
        if self.datatype == "BYTES":
            return decode_byte_strings(self.data).reshape(self.shape)
        dtype = DATATYPES[self.datatype].numpy or np.dtype(np.uint16)
        return np.frombuffer(self.data, dtype).reshape(self.shape)

    def element_count(self) -> int:
        return prod(self.shape)


Allocate: TypeAlias = Callable[[int], memoryview | None]
"""Provides writable memory for a tensor of this many bytes; None when ordinary memory will do."""
_STEP_BYTES = 1 << 20


def move_data(tensor: Tensor, allocate: Allocate) -> None:
    """Copies the data to memory that `allocate` provides, in steps that do not hold the interpreter
    lock for long."""
    source = memoryview(tensor.data).cast("B")
    target = allocate(len(source))
    if target is None:
        return
    for start in range(0, len(source), _STEP_BYTES):
        end = min(start + _STEP_BYTES, len(source))
        target[start:end] = source[start:end]
    tensor.data = target[: len(source)]


def has_larger(tensors: Iterable[Tensor], num_bytes: int) -> bool:
    return any(len(tensor.data) > num_bytes for tensor in tensors)


def move_larger(tensors: Iterable[Tensor], num_bytes: int, allocate: Allocate) -> None:
    """Does `move_data` for the tensors of more than `num_bytes`."""
    for tensor in tensors:
        if len(tensor.data) > num_bytes:
            move_data(tensor, allocate)


def tensor_from_numpy(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    datatype = from_numpy(array.dtype)
    if datatype is None:
        raise invalid_arg(
            f"tensor '{name}' has numpy type '{array.dtype}', which has no Triton datatype"
        )
    if datatype.name == "BYTES":
        return Tensor(name, "BYTES", list(array.shape), encode_byte_strings(array))
    return Tensor(name, datatype.name, list(array.shape), np.ascontiguousarray(array).tobytes())
