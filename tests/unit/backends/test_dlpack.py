"""DLPack import and export, with numpy and with hand-made capsules. Memory is freed only once."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from naiad.backends import cuda_copy, dlpack
from naiad.backends.python.error import TritonModelException
from naiad.backends.python.tensor import Tensor, encode_tensor, received_tensor
from naiad.ipc.work import WorkTensor


class Producer:
    """A tensor of another library, which counts how often it was exported."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Consumer:
    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> object:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    ],
)
def test_import_shares_memory(dtype: str) -> None:
    array = np.zeros((2, 3), dtype)
    tensor = Tensor.from_dlpack("Y", Producer(array))
    assert (tensor.shape(), tensor.as_numpy().dtype, tensor.is_cpu()) == ([2, 3], array.dtype, True)
    tensor.as_numpy()[1, 2] = 1
    assert array[1, 2] == 1
    assert bytes(encode_tensor(tensor).data) == array.tobytes()


def test_import_of_a_bare_capsule_consumes_it() -> None:
    capsule = np.arange(3).__dlpack__()
    assert Tensor.from_dlpack("Y", capsule).as_numpy().tolist() == [0, 1, 2]
    with pytest.raises(TritonModelException, match="consumed already"):
        Tensor.from_dlpack("Y", capsule)


def test_producer_lives_as_long_as_the_last_view() -> None:
    class Tracked(np.ndarray):
        pass

    array = np.zeros(4).view(Tracked)
    alive = weakref.ref(array)
    view = Tensor.from_dlpack("Y", Producer(array)).as_numpy()[1:]
    del array
    gc.collect()
    assert alive() is not None
    assert view.tolist() == [0, 0, 0]
    del view
    gc.collect()
    assert alive() is None


def test_empty_and_scalar_tensors() -> None:
    assert Tensor.from_dlpack("Y", np.zeros((0, 2))).shape() == [0, 2]
    assert Tensor.from_dlpack("Y", np.array(3.0)).as_numpy() == 3.0


def test_export() -> None:
    for tensor in (
        Tensor("Y", np.arange(4, dtype=np.float32)),
        received_tensor(WorkTensor("X", "FP32", [4], bytearray(16))),
    ):
        shared = np.from_dlpack(tensor)  # type: ignore[arg-type]
        np.testing.assert_array_equal(shared, tensor.as_numpy())
        assert np.shares_memory(shared, tensor.as_numpy())
        assert tensor.__dlpack_device__() == (1, 0)
    assert np.from_dlpack(Consumer(Tensor("Y", np.array([True])).to_dlpack())).tolist() == [True]  # type: ignore[arg-type]


def test_export_outlives_the_tensor() -> None:
    tensor = Tensor("Y", np.arange(4))
    shared = np.from_dlpack(tensor)  # type: ignore[arg-type]
    del tensor
    gc.collect()
    assert shared.tolist() == [0, 1, 2, 3]


def test_read_only_memory_is_copied_for_export() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    again = Tensor.from_dlpack("Z", Tensor("Y", array))
    again.as_numpy()[0] = 9
    assert array.tolist() == [0, 1, 2]


def test_rejects_unsupported_tensors() -> None:
    for value, message in (
        (
            5,
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have "
            "`__dlpack__` and `__dlpack_device__` attributes",
        ),
        (
            np.arange(6).reshape(2, 3).T,
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in "
            "C-Order are supported.",
        ),
        (np.zeros(2, np.complex64), 'DType code "5" is not supported.'),
    ):
        with pytest.raises(TritonModelException) as caught:
            Tensor.from_dlpack("Y", value)
        assert str(caught.value) == message
    with pytest.raises(TritonModelException, match="Tensor name cannot be an empty string"):
        Tensor.from_dlpack("", np.zeros(1))
    with pytest.raises(
        TritonModelException, match="DLPack does not have support for string tensors"
    ):
        Tensor("T", np.array([b"a"], dtype=np.object_)).to_dlpack()


def test_a_rejected_capsule_still_belongs_to_its_owner() -> None:
    capsule = np.zeros(2, np.complex64).__dlpack__()
    with pytest.raises(TritonModelException):
        Tensor.from_dlpack("Y", capsule)
    assert np.from_dlpack(Consumer(capsule)).dtype == np.complex64  # type: ignore[arg-type]


def on_device(array: np.ndarray[Any, Any], device_type: int = dlpack.CUDA) -> object:
    """Returns a capsule that claims to be on a device, whose memory must not be accessed."""
    return dlpack.export_capsule(dlpack.ForeignTensor(array, "FP32", device_type, 3))


def test_device_memory_cannot_be_converted_to_numpy() -> None:
    tensor = Tensor.from_dlpack("Y", on_device(np.zeros(2, np.float32)))
    assert (tensor.is_cpu(), tensor.shape(), tensor.__dlpack_device__()) == (False, [2], (2, 3))
    with pytest.raises(
        TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumPy\.$"
    ):
        tensor.as_numpy()
    again = Tensor.from_dlpack("Z", tensor.to_dlpack())
    assert (again.is_cpu(), again.__dlpack_device__()) == (False, (2, 3))


def test_rejects_an_unknown_device() -> None:
    with pytest.raises(
        TritonModelException, match=r"^DLDevice type 7 is not support by Python backend\.$"
    ):
        Tensor.from_dlpack("Y", on_device(np.zeros(2, np.float32), 7))


def test_rejects_device_memory_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    cuda_copy._driver.cache_clear()
    with pytest.raises(cuda_copy.CudaError, match="no CUDA driver"):
        cuda_copy.copy_to_host(np.zeros(1), 0)
    with pytest.raises(
        TritonModelException, match="Failed to copy the GPU output tensor to buffer"
    ):
        encode_tensor(Tensor.from_dlpack("Y", on_device(np.zeros(2, np.float32))))
