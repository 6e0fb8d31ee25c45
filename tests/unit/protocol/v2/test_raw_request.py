"""Raw binary requests: the shape follows from the model and the number of bytes."""

from __future__ import annotations

import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.errors import NaiadError
from naiad.protocol.v2.output_format import BINARY_FORMAT
from naiad.protocol.v2.raw_request import decode_request


def spec(*inputs: tuple[str, list[int]], max_batch_size: int = 0) -> ModelSpec:
    tensors = {
        f"IN{at}": TensorSpec(f"IN{at}", datatype, dims, dims)
        for at, (datatype, dims) in enumerate(inputs)
    }
    return ModelSpec("m", 1, [1], "", max_batch_size, tensors, {})


@pytest.mark.parametrize(
    ("datatype", "dims", "max_batch_size", "num_bytes", "shape"),
    [
        ("FP32", [-1], 0, 8, [2]),
        ("FP32", [-1], 0, 0, [0]),
        ("FP32", [2, -1], 0, 8, [2, 1]),
        ("FP32", [4], 8, 16, [1, 4]),
        ("INT8", [-1, 3], 4, 12, [1, 4, 3]),
    ],
)
def test_shapes(
    datatype: str, dims: list[int], max_batch_size: int, num_bytes: int, shape: list[int]
) -> None:
    request, formats = decode_request(
        bytes(num_bytes), spec((datatype, dims), max_batch_size=max_batch_size), "3", 1000
    )
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.shape, len(tensor.data)) == (
        "IN0",
        datatype,
        shape,
        num_bytes,
    )
    assert (request.model_name, request.model_version) == ("m", "3")
    assert (formats.default, formats.by_name) == (BINARY_FORMAT, None)


@pytest.mark.parametrize("max_batch_size", [0, 4])
def test_one_string(max_batch_size: int) -> None:
    request, _ = decode_request(
        b"hello", spec(("BYTES", [1]), max_batch_size=max_batch_size), "", 1000
    )
    assert request.inputs[0].as_numpy().ravel().tolist() == [b"hello"]
    assert request.inputs[0].shape == ([1, 1] if max_batch_size else [1])


@pytest.mark.parametrize(
    ("model", "num_bytes", "words"),
    [
        (
            spec(("FP32", [-1])),
            9,
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 8, got 9",
        ),
        (
            spec(("FP32", [4])),
            8,
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 16, got 8",
        ),
        (
            spec(("FP32", [2, -1])),
            12,
            "input byte size mismatch for input 'raw_input' for model 'm'. Expected 8, got 12",
        ),
        (
            spec(("FP32", [-1, -1])),
            8,
            "The shape of the raw input 'IN0' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
        (
            spec(("BYTES", [-1])),
            8,
            "For BYTE datatype raw input 'IN0', the model must have input shape [1]",
        ),
        (
            spec(("FP32", [1]), ("FP32", [1])),
            8,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' "
            "model configuration",
        ),
    ],
)
def test_refused(model: ModelSpec, num_bytes: int, words: str) -> None:
    with pytest.raises(NaiadError) as caught:
        decode_request(bytes(num_bytes), model, "", 1000)
    assert caught.value.message == f"[request id: <id_unknown>] {words}"


def test_too_large() -> None:
    with pytest.raises(NaiadError) as caught:
        decode_request(bytes(1001), spec(("INT8", [-1])), "", 1000)
    assert caught.value.message == (
        "Raw input has a byte_size (1001 bytes) that exceeds the maximum allowed value of 1000 "
        "bytes. "
        "Use --http-max-input-size to increase the limit."
    )
