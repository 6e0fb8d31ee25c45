"""pb_utils.Tensor: views, copies and datatypes. Error messages are Triton's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from naiad.backends.python.error import TritonModelException
from naiad.backends.python.tensor import COPY_MAX_BYTES, Tensor, encode_tensor, received_tensor
from naiad.core.tensor import tensor_from_numpy
from naiad.ipc.work import WorkTensor

NUMERIC = [
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
]


def received(array: np.ndarray[Any, Any], name: str = "X") -> Tensor:
    tensor = tensor_from_numpy(name, array)
    return received_tensor(WorkTensor(name, tensor.datatype, tensor.shape, bytearray(tensor.data)))


@pytest.mark.parametrize("dtype", NUMERIC)
def test_encodes_and_decodes_numeric_tensors(dtype: str) -> None:
    array = np.array([[0, 1, 1]], dtype=dtype)
    incoming = received(array)
    assert incoming.as_numpy().dtype == array.dtype
    np.testing.assert_array_equal(incoming.as_numpy(), array)
    assert (incoming.shape(), incoming.name(), incoming.is_cpu()) == ([1, 3], "X", True)
    assert incoming.triton_dtype() is array.dtype.type
    encoded = encode_tensor(Tensor("Y", array))
    assert (encoded.name, encoded.shape, bytes(encoded.data)) == ("Y", [1, 3], array.tobytes())
    assert encoded.datatype == tensor_from_numpy("X", array).datatype


def test_input_is_a_writable_view_made_once() -> None:
    data = bytearray(np.zeros(2, np.float32).tobytes())
    tensor = received_tensor(WorkTensor("X", "FP32", [2], data))
    assert tensor.as_numpy() is tensor.as_numpy()
    tensor.as_numpy()[0] = 5
    assert np.frombuffer(data, np.float32)[0] == 5


def test_byte_strings_are_object_arrays_of_bytes() -> None:
    tensor = received(np.array([["a", "öl"], [b"\x00\xff", ""]], dtype=np.object_))
    assert tensor.as_numpy().tolist() == [[b"a", "öl".encode()], [b"\x00\xff", b""]]
    assert tensor.as_numpy() is tensor.as_numpy()
    assert tensor.triton_dtype() is np.object_


def test_sends_changes_of_byte_strings() -> None:
    tensor = received(np.array([b"old"], dtype=np.object_))
    tensor.as_numpy()[0] = b"changed"
    assert received_tensor(encode_tensor(tensor)).as_numpy().tolist() == [b"changed"]


def test_byte_string_outputs() -> None:
    for array in (np.array([b"a", "ö", 3, None], dtype=np.object_), np.array([b"ab", b"c"])):
        expected = [e if isinstance(e, bytes) else str(e).encode() for e in array.tolist()]
        assert received_tensor(encode_tensor(Tensor("TEXT", array))).as_numpy().tolist() == expected


def test_passes_on_an_unchanged_input() -> None:
    source = WorkTensor("X", "FP32", [1], bytearray(4))
    tensor = received_tensor(source)
    assert encode_tensor(tensor) is source
    tensor.as_numpy()[0] = 1
    assert encode_tensor(tensor) is source


def test_large_output_is_a_view() -> None:
    array = np.zeros((2, COPY_MAX_BYTES), np.float16)
    data = encode_tensor(Tensor("Y", array)).data
    assert isinstance(data, memoryview)
    assert (data.nbytes, data.format, data.contiguous) == (array.nbytes, "B", True)
    array[0, 0] = 1
    assert bytes(data[:2]) == np.float16(1).tobytes()


def test_empty_and_scalar_outputs() -> None:
    assert encode_tensor(Tensor("Y", np.zeros((0, 3), np.int32))) == WorkTensor(
        "Y", "INT32", [0, 3], b""
    )
    assert encode_tensor(Tensor("Y", np.array(3.0))).shape == []
    assert received(np.zeros((0, 3), np.int32)).as_numpy().shape == (0, 3)


def test_makes_arrays_contiguous() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    for view in (array.T, np.asfortranarray(array), array[:, ::2]):
        tensor = Tensor("Y", view)
        np.testing.assert_array_equal(tensor.as_numpy(), view)
        assert encode_tensor(tensor).data == view.tobytes()
    assert Tensor("Y", array).as_numpy() is array


def test_a_name_may_be_utf8_bytes() -> None:
    assert Tensor("grün".encode(), np.zeros(1)).name() == "grün"
    assert Tensor(bytearray(b"Y"), np.zeros(1)).name() == "Y"  # type: ignore[arg-type]
    assert Tensor.from_dlpack(b"Y", np.zeros(1)).name() == "Y"
    with pytest.raises(TritonModelException, match="Tensor name cannot be an empty string"):
        Tensor(b"", np.zeros(1))
    with pytest.raises(UnicodeDecodeError):
        Tensor(b"\xff", np.zeros(1))


def test_rejects_invalid_arguments() -> None:
    with pytest.raises(TritonModelException, match=r"^Tensor name cannot be an empty string\.$"):
        Tensor("", np.zeros(1))
    for dtype in ("<U3", "complex64", ">f4", "M8[s]"):
        with pytest.raises(TritonModelException, match=r"^NumPy dtype is not supported\.$"):
            Tensor("Y", np.zeros(1, dtype))
    for arguments in ((1, np.zeros(1)), ("Y", [1, 2]), ("Y", np.float32(1))):
        with pytest.raises(TypeError, match="incompatible constructor arguments") as caught:
            Tensor(*arguments)
        assert "0x" not in str(caught.value)


def test_names_become_plain_text() -> None:
    assert type(Tensor(np.str_("Y"), np.zeros(1)).name()) is str
    assert Tensor("\udc80", np.zeros(1)).name() == "?"


def test_bf16_cannot_be_converted_to_numpy() -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)
    tensor = received_tensor(WorkTensor("X", "BF16", [2], bytearray(bits.tobytes())))
    with pytest.raises(
        TritonModelException,
        match=r"^Tensor dtype is BF16 and cannot be converted to NumPy\. Use to_dlpack\(\)",
    ):
        tensor.as_numpy()
    assert (tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ([2], None, True)
    again = Tensor.from_dlpack("Y", tensor)
    with pytest.raises(TritonModelException, match="BF16"):
        again.as_numpy()
    encoded = encode_tensor(again)
    assert (encoded.datatype, encoded.data) == ("BF16", bits.tobytes())
