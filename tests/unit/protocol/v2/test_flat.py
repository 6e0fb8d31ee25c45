"""Long lists of a flat object are read in slices, to the same shapes as short ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.request import InferRequest
from naiad.core.response import InferResponse
from naiad.core.tensor import tensor_from_numpy
from naiad.errors import NaiadError
from naiad.protocol.v2 import generate, json_split
from naiad.protocol.v2.flat import FlatConversion, may_be_flat, parse_large


def spec_of(datatype: str, dims: list[int], max_batch_size: int = 8) -> ModelSpec:
    tensor = TensorSpec('a "b"', datatype, dims, [-1, *dims] if max_batch_size else dims)
    return ModelSpec("m", 1, [1], "", max_batch_size, {tensor.name: tensor}, {})


def small(value: Any, spec: ModelSpec) -> InferRequest:
    return FlatConversion(spec, 1 << 30).request({'a "b"': value}, "")


def large(value: Any, spec: ModelSpec) -> InferRequest:
    text = json.dumps({'a "b"': value, "id": "7"}).encode()
    document, data = parse_large(text, spec, 1 << 20)
    return FlatConversion(spec, 1 << 30, data).request(document, "")


@pytest.mark.parametrize(
    ("shape", "dims"),
    [((6, 50, 40), [50, 40]), ((50, 40), [50, 40]), ((4, 3000), [-1]), ((9000, 1), [1])],
)
@pytest.mark.parametrize("slice_bytes", [json_split.SLICE_BYTES, 1024, 997])
def test_an_array(
    shape: tuple[int, ...], dims: list[int], slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("naiad.protocol.v2.flat.SLICE_BYTES", slice_bytes)
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    spec = spec_of("FP32", dims)
    expected, found = small(array.tolist(), spec).inputs[0], large(array.tolist(), spec).inputs[0]
    assert found.shape == expected.shape
    assert bytes(found.data) == bytes(expected.data) == array.tobytes()


def test_strings_may_hold_brackets_and_commas() -> None:
    texts = [[f'{number}: "[],[' * 20] for number in range(400)]
    spec = spec_of("BYTES", [1])
    expected, found = small(texts, spec).inputs[0], large(texts, spec).inputs[0]
    assert found.shape == expected.shape == [400, 1]
    assert bytes(found.data) == bytes(expected.data)


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=60).filter(any),
    slice_bytes=st.integers(3, 4000),
)
def test_lists_of_different_lengths_are_refused(lengths: list[int], slice_bytes: int) -> None:
    value = [[float(number) + 0.125 for number in range(500 * length)] for length in lengths]
    spec = spec_of("FP32", [-1], max_batch_size=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("naiad.protocol.v2.flat.SLICE_BYTES", slice_bytes)
        patch.setattr(json_split, "_MIN_DATA_BYTES", 8)
        if len(set(lengths)) == 1:
            assert large(value, spec).inputs[0].shape == [len(lengths), 500 * lengths[0]]
        else:
            with pytest.raises(NaiadError):
                large(value, spec)


def test_a_body_with_inputs_is_not_flat() -> None:
    assert may_be_flat(b'{"a": [' + b"1," * 100_000 + b"1]}")
    for padding in range(131_060, 131_080):
        assert not may_be_flat(b" " * padding + b'{"inputs": []}')


@pytest.mark.parametrize(
    "arrays",
    [
        {"A": np.arange(40_000, dtype=np.float32).reshape(2, -1)},
        {"A": np.array([[b"x" * 3_000_000]], object), "B": np.array([7], np.int8)},
        {"A": np.array([b'"\xff\x00', b"", "\u00e9".encode()], object)},
        {"A": np.array([np.nan, np.inf, 1.5], np.float64), "B": np.zeros((0, 3), np.int32)},
        {'a "b"': np.array(True), "C": np.array([[True, False]])},
    ],
)
@pytest.mark.parametrize("identity", [None, {"request_id": 7}])
def test_a_large_response_is_written_as_a_small_one(
    arrays: dict[str, Any], identity: dict[str, Any] | None
) -> None:
    outputs = [tensor_from_numpy(name, array) for name, array in arrays.items()]
    response = InferResponse("m", "1", "id", outputs, {"x": 1})
    assert b"".join(generate.encode_large_response(response, identity)) == bytes(
        generate.encode_response(response, identity)
    )
