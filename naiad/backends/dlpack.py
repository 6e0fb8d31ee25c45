"""DLPack: capsules -> numpy views of another library's memory, and arrays -> capsules.

numpy's own DLPack functions support neither BF16 nor device memory, and their views are read-only.
So this file reads the struct in a capsule itself. To export, it lets numpy make a capsule, whose
deleter is safe at interpreter exit, and corrects the fields that numpy cannot express. The layout
is that of dlpack.h, version 0.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from naiad.core.datatype import DATATYPES

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
ON_HOST = (CPU, CUDA_HOST, CUDA_MANAGED)
ON_CUDA = (CUDA,)

_DATATYPES = {
    (0, 8): "INT8", (0, 16): "INT16", (0, 32): "INT32", (0, 64): "INT64",
    (1, 8): "UINT8", (1, 16): "UINT16", (1, 32): "UINT32", (1, 64): "UINT64",
    (2, 16): "FP16", (2, 32): "FP32", (2, 64): "FP64",
    (4, 16): "BF16",
    (6, 8): "BOOL",
}  # fmt: skip
_BFLOAT = 4
_NAME = b"dltensor"
_USED_NAME = b"used_dltensor"


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_deleter_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.restype = ctypes.c_int
_capsule_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_set_name = ctypes.pythonapi.PyCapsule_SetName
_capsule_set_name.restype = ctypes.c_int
_capsule_set_name.argtypes = (ctypes.py_object, ctypes.c_char_p)


class UnsupportedTensorError(Exception):
    """The tensor cannot be imported. The message gives the reason."""


class ForeignTensor:
    """Memory that belongs to another library.

    `array` describes the memory. If it is device memory, its elements are never accessed.
    """

    __slots__ = ("array", "datatype", "device_id", "device_type")

    def __init__(
        self, array: np.ndarray[Any, Any], datatype: str, device_type: int = CPU, device_id: int = 0
    ) -> None:
        self.array = array
        self.datatype = datatype
        self.device_type = device_type
        self.device_id = device_id


class _Owner:
    """The producer's tensor, with numpy's array interface.

    It calls the producer's deleter when the last view is gone.
    """

    __slots__ = ("__array_interface__", "_pointer")

    def __init__(self, pointer: int, address: int, shape: list[int], dtype: np.dtype[Any]) -> None:
        self._pointer = pointer
        self.__array_interface__ = {
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": dtype.str,
            "version": 3,
        }

    def __del__(self) -> None:
        deleter = _DLManagedTensor.from_address(self._pointer).deleter
        if deleter:
            _deleter_type(deleter)(self._pointer)


def is_capsule(value: object) -> bool:
    return type(value).__name__ == "PyCapsule"


def import_capsule(capsule: object) -> ForeignTensor:
    """Takes ownership of the tensor, without a copy.

    Raises UnsupportedTensorError. The capsule then still belongs to its owner.
    """
    if not _capsule_is_valid(capsule, _NAME):
        raise UnsupportedTensorError(
            "DLPack capsule is not a 'dltensor', or has been consumed already."
        )
    pointer = _capsule_pointer(capsule, _NAME)
    tensor = _DLManagedTensor.from_address(pointer).tensor
    datatype = _DATATYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise UnsupportedTensorError(f'DType code "{tensor.code}" is not supported.')
    if tensor.device_type not in ON_HOST and tensor.device_type not in ON_CUDA:
        raise UnsupportedTensorError(
            f"DLDevice type {tensor.device_type} is not support by Python backend."
        )
    shape = [tensor.shape[axis] for axis in range(tensor.ndim)]
    if tensor.strides and not _is_contiguous(
        shape, [tensor.strides[axis] for axis in range(tensor.ndim)]
    ):
        raise UnsupportedTensorError(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported."
        )
    dtype = DATATYPES[datatype].numpy or np.dtype(np.uint16)
    owner = _Owner(pointer, (tensor.data or 0) + tensor.byte_offset, shape, dtype)
    _capsule_set_name(capsule, _USED_NAME)
    array = np.empty(shape, dtype) if 0 in shape else np.asarray(owner)
    return ForeignTensor(array, datatype, tensor.device_type, tensor.device_id)


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    if 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def export_capsule(foreign: ForeignTensor) -> object:
    """Returns a new capsule over the same memory. The consumer keeps the memory alive."""
    # DLPack 0 has no read-only flag, so a consumer may write. Read-only memory is copied.
    array = foreign.array if foreign.array.flags.writeable else foreign.array.copy()
    capsule: object = array.__dlpack__()
    tensor = _DLManagedTensor.from_address(_capsule_pointer(capsule, _NAME)).tensor
    if foreign.datatype == "BF16":
        tensor.code = _BFLOAT
    tensor.device_type = foreign.device_type
    tensor.device_id = foreign.device_id
    return capsule
