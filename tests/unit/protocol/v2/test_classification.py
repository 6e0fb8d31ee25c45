"""The classification extension; the expected strings are those of a genuine Triton."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.errors import NaiadError
from naiad.protocol.v2.classification import classify

LABELS = ["cat", "dog", "bird", "fish"]


def spec(max_batch_size: int, labels: list[str]) -> ModelSpec:
    return ModelSpec(
        "m",
        1,
        [1],
        "",
        max_batch_size,
        {},
        {"OUT": TensorSpec("OUT", "FP32", [4], [-1, 4], labels=labels)},
    )


def run(
    values: Any, kind: Any, count: int, max_batch_size: int = 0, labels: list[str] | None = None
) -> tuple[list[int], list[str]]:
    tensor = classify(
        tensor_from_numpy("OUT", np.array(values, kind)), count, spec(max_batch_size, labels or [])
    )
    assert (tensor.name, tensor.datatype) == ("OUT", "BYTES")
    return tensor.shape, [text.decode() for text in tensor.as_numpy().ravel().tolist()]


def test_batches_and_labels() -> None:
    shape, classes = run([[1, 3, 2, 4], [9, 9, -1, 0.5]], np.float32, 10, 8, LABELS)
    assert shape == [2, 4]
    assert classes == [
        "4.000000:3:fish", "3.000000:1:dog", "2.000000:2:bird", "1.000000:0:cat",
        "9.000000:0:cat", "9.000000:1:dog", "0.500000:3:fish", "-1.000000:2:bird",
    ]  # fmt: skip


def test_equal_values_keep_their_order() -> None:
    assert run([[1, 1, 1, 1]], np.float32, 2, 8) == ([1, 2], ["1.000000:0", "1.000000:1"])


def test_odd_floats() -> None:
    assert run([[1e10, 1e-10, -0.0, 0]], np.float32, 4, 8)[1] == [
        "10000000000.000000:0",
        "0.000000:1",
        "-0.000000:2",
        "0.000000:3",
    ]
    assert run([[np.nan, 1, np.inf, -np.inf]], np.float32, 4, 8)[1] == [
        "nan:0",
        "inf:2",
        "1.000000:1",
        "-inf:3",
    ]
    assert run([0.1, 0.25, 1e20], np.float64, 2)[1] == [
        "100000000000000000000.000000:2",
        "0.250000:1",
    ]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.int64])
def test_integers(kind: Any) -> None:
    assert run([5, 7, 100], kind, 2) == ([2], ["100:2", "7:1"])


def test_all_dimensions_but_the_batch_are_classes() -> None:
    assert run([[1, 2], [3, 4]], np.float32, 2) == ([2], ["4.000000:3", "3.000000:2"])
    assert run([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.int32, 3, 4) == (
        [2, 3],
        ["4:3", "3:2", "2:1", "8:3", "7:2", "6:1"],
    )


def test_fewer_labels_than_classes() -> None:
    assert run([1, 2, 3], np.int32, 3, 0, ["only"])[1] == ["3:2", "2:1", "1:0:only"]


def test_no_elements() -> None:
    assert run([], np.float32, 3) == ([0], [])


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
def test_types_without_classes(datatype: str) -> None:
    with pytest.raises(
        NaiadError,
        match=f"^class result not available for output due to unsupported type '{datatype}'$",
    ):
        classify(Tensor("OUT", datatype, [1], b"\0\0"), 1, spec(0, []))


def test_too_many_elements() -> None:
    with pytest.raises(NaiadError, match=r"^classification output tensor too large$"):
        classify(Tensor("OUT", "INT8", [1_000_001], bytes(1_000_001)), 1, spec(0, []))
