"""`pb_utils.Tensor`: an input or an output of a model.

In:  Tensor structs of received requests; numpy arrays and DLPack objects from the model.
Out: Tensor structs for responses and BLS calls.
Rule: data is converted only when it is used, and copied only if necessary. `as_numpy` of an input
      is a writable view of the received memory, and a large output is sent as a view of the model's
      array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from naiad.backends import dlpack
from naiad.backends.cuda_copy import CudaError, copy_to_host
from naiad.backends.dlpack import ForeignTensor
from naiad.backends.python.error import TritonModelException, signature_error
from naiad.backends.python.wire_text import as_text, wire_text
from naiad.core.byte_strings import decode_byte_strings, encode_byte_strings
from naiad.core.datatype import BY_NUMPY, DATATYPES
from naiad.ipc.work import WorkTensor

Array = np.ndarray[Any, Any]

COPY_MAX_BYTES = 4096
"""Up to this size, copying an array is cheaper than making a view of it."""

_NUMPY = {
    name: datatype.numpy
    for name, datatype in DATATYPES.items()
    if datatype.numpy is not None and name != "BYTES"
}
_DATATYPE = {dtype: datatype.name for dtype, datatype in BY_NUMPY.items()}
_BITS = np.dtype(np.uint16)
_ndarray = np.ndarray


class Tensor:
    __slots__ = ("_array", "_datatype", "_foreign", "_name", "_source")

    _name: str
    _datatype: str
    _array: Array | None
    """The result of `as_numpy`; None before its first call.

    It is always None for BF16 and device memory, which numpy cannot represent.
    """
    _source: WorkTensor | None
    """The received tensor, or None if the model made the tensor."""
    _foreign: ForeignTensor | None
    """Memory that numpy cannot represent, because it is BF16 or on a device."""

    def __init__(self, name: str | bytes, array: Array) -> None:
        if name.__class__ is not str:
            name = as_text(name)
        if not isinstance(array, _ndarray) or not isinstance(name, str):
            raise signature_error("Tensor(name: str, array: numpy.ndarray)", name, array)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = _DATATYPE.get(array.dtype)
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        self._name = name if name.__class__ is str and name.isascii() else wire_text(name)
        self._datatype = datatype or _special_datatype(array.dtype)
        self._array = array
        self._source = None
        self._foreign = None
        if datatype is None and self._datatype == "BF16":
            self._foreign = ForeignTensor(array.view(_BITS), "BF16")
            self._array = None

    @staticmethod
    def from_dlpack(name: str | bytes, tensor: Any) -> Tensor:
        """Takes ownership of a capsule, or of an object with `__dlpack__`, without a copy."""
        name = as_text(name)
        if not isinstance(name, str):
            raise signature_error("Tensor.from_dlpack(name: str, tensor: object)", name, tensor)
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        try:
            foreign = dlpack.import_capsule(_capsule(tensor))
        except dlpack.UnsupportedTensorError as error:
            raise TritonModelException(str(error)) from None
        result = Tensor.__new__(Tensor)
        result._name = wire_text(name)
        result._datatype = foreign.datatype
        is_plain = foreign.datatype != "BF16" and foreign.device_type in dlpack.ON_HOST
        result._source = None
        result._array, result._foreign = (foreign.array, None) if is_plain else (None, foreign)
        return result

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        if self._source is not None:
            return list(self._source.shape)
        array = self._array if self._foreign is None else self._foreign.array
        assert array is not None
        return list(array.shape)

    def triton_dtype(self) -> type[Any] | None:
        """Returns the numpy type, or None for BF16, which has none."""
        dtype = DATATYPES[self._datatype].numpy
        return None if dtype is None else dtype.type

    def is_cpu(self) -> bool:
        return self._foreign is None or self._foreign.device_type in dlpack.ON_HOST

    def as_numpy(self) -> Array:
        array = self._array
        if array is None:
            source = self._source
            dtype = _NUMPY.get(self._datatype)
            if source is None or dtype is None:
                array = self._decode_special()
            else:
                array = _ndarray(source.shape, dtype, source.data)
            self._array = array
        return array

    def _decode_special(self) -> Array:
        """Decodes byte strings. Raises TritonModelException for device memory and BF16."""
        if not self.is_cpu():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
                "from_dlpack() instead."
            )
        source = self._source
        assert source is not None
        return decode_byte_strings(source.data).reshape(source.shape)

    def to_dlpack(self) -> object:
        if self._datatype == "BYTES":
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.export_capsule(self._exportable())

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> object:
        """Ignores `stream` and the options of later DLPack versions, which are hints.

        The capsule is always of version 0, and its data is complete.
        """
        return self.to_dlpack()

    def __dlpack_device__(self) -> tuple[int, int]:
        if self._foreign is not None:
            return self._foreign.device_type, self._foreign.device_id
        return dlpack.CPU, 0

    def _exportable(self) -> ForeignTensor:
        if self._foreign is not None:
            return self._foreign
        if self._source is not None and self._datatype == "BF16":
            return ForeignTensor(_ndarray(self._source.shape, _BITS, self._source.data), "BF16")
        return ForeignTensor(self.as_numpy(), self._datatype)


def received_tensor(source: WorkTensor) -> Tensor:
    tensor = _new(Tensor)
    tensor._name = source.name
    tensor._datatype = source.datatype
    tensor._array = None
    tensor._source = source
    tensor._foreign = None
    return tensor


_new = Tensor.__new__


def encode_tensor(tensor: Tensor) -> WorkTensor:
    """Raises TritonModelException if device memory cannot be read."""
    array = tensor._array
    datatype = tensor._datatype
    if tensor._source is not None and (array is None or datatype != "BYTES"):
        # The model passes on a tensor it received. Changes made through as_numpy() are in the
        # received memory, except for byte strings.
        return tensor._source
    if array is None:
        assert tensor._foreign is not None
        array = _host_array(tensor._foreign)
    if datatype == "BYTES":
        return WorkTensor(tensor._name, "BYTES", list(array.shape), encode_byte_strings(array))
    data = array.tobytes() if array.nbytes <= COPY_MAX_BYTES else array.data.cast("B")
    return WorkTensor(tensor._name, datatype, list(array.shape), data)


def _host_array(foreign: ForeignTensor) -> Array:
    if foreign.device_type in dlpack.ON_HOST:
        return foreign.array
    try:
        return copy_to_host(foreign.array, foreign.device_id)
    except CudaError as error:
        raise TritonModelException(
            f"Failed to copy the GPU output tensor to buffer. {error}"
        ) from None


def _capsule(tensor: Any) -> object:
    if dlpack.is_capsule(tensor):
        return tensor
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have "
            "`__dlpack__` and `__dlpack_device__` attributes"
        )
    device_type = tensor.__dlpack_device__()[0]
    # Stream 1 is CUDA's legacy default stream, and the producer's work is ordered before it. The
    # copy to the host waits for all streams anyway.
    return tensor.__dlpack__(stream=1) if device_type in dlpack.ON_CUDA else tensor.__dlpack__()


def _special_datatype(dtype: np.dtype[Any]) -> str:
    """Returns BYTES for byte strings of fixed width, and BF16 for the bfloat16 of other packages.

    Raises TritonModelException for other types.
    """
    if dtype.kind == "S":
        return "BYTES"
    if dtype.name == "bfloat16":
        return "BF16"
    raise TritonModelException("NumPy dtype is not supported.")
