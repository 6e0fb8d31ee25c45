"""The arrays for every kind of batch_input of a ragged batch, and how batch_output is split."""

from __future__ import annotations

import numpy as np
import pytest

from naiad.backends.ragged_batch import batch_input, scatter
from naiad.backends.served_config import BatchTensor
from naiad.errors import NaiadError

SHAPES = [[1, 3], [2, 2], [1, 1]]
"""The shapes of an input in three requests. The second request is a batch of two."""


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 4, 1]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 7, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 7, 8]),
        ("BATCH_ITEM_SHAPE", [[3], [2], [2], [1]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 2, 2, 1]),
    ],
)
@pytest.mark.parametrize("datatype", ["TYPE_INT32", "TYPE_FP32"])
def test_values_of_batch_inputs(kind: str, want: list[int], datatype: str) -> None:
    made = batch_input(BatchTensor(kind, ["t"], datatype, ["x"]), SHAPES)
    assert made.tolist() == want
    assert made.dtype == (np.int32 if datatype == "TYPE_INT32" else np.float32)


def test_the_largest_count_is_the_shape() -> None:
    assert batch_input(
        BatchTensor("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", ["t"], "TYPE_INT32", ["x"]), SHAPES
    ).shape == (4,)


def test_items_of_more_dimensions() -> None:
    shapes = [[1, 2, 3], [2, 4, 5]]
    assert batch_input(
        BatchTensor("BATCH_ITEM_SHAPE", ["t"], "TYPE_INT32", ["x"]), shapes
    ).tolist() == [[2, 3], [4, 5], [4, 5]]
    assert batch_input(
        BatchTensor("BATCH_ITEM_SHAPE_FLATTEN", ["t"], "TYPE_INT32", ["x"]), shapes
    ).tolist() == [2, 3, 4, 5, 4, 5]


def test_splits_an_output_into_the_shapes_of_its_source() -> None:
    parts = scatter("y", np.arange(8), SHAPES)
    assert [part.tolist() for part in parts] == [[[0, 1, 2]], [[3, 4], [5, 6]], [[7]]]


def test_rejects_an_output_of_another_size() -> None:
    with pytest.raises(NaiadError) as caught:
        scatter("y", np.arange(9), SHAPES)
    assert (
        caught.value.message
        == "batch output 'y' has 9 elements, expected 8 from the shapes of its source input"
    )
