"""Ragged batches: inputs of different sizes are concatenated, and the model gets their sizes.

In:  `batch_input` and `batch_output` of a config, and the shapes of one input in each request.
Out: the same arrays as in Triton.
"""

from __future__ import annotations

from math import prod

import numpy as np

from naiad.backends.served_config import BatchTensor
from naiad.backends.tensor_array import Array, array_dtype
from naiad.core.datatype import BY_CONFIG_NAME
from naiad.errors import internal


def batch_input(batch: BatchTensor, shapes: list[list[int]]) -> Array:
    """Returns a batch input. `shapes` has the shape of the source input in each request."""
    dtype = array_dtype(BY_CONFIG_NAME[batch.data_type].name)
    counts = [prod(shape) for shape in shapes]
    match batch.kind:
        case "BATCH_ELEMENT_COUNT":
            return np.array(counts, dtype)
        case "BATCH_ACCUMULATED_ELEMENT_COUNT":
            return np.cumsum(counts).astype(dtype)
        case "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO":
            return np.cumsum([0, *counts]).astype(dtype)
        case "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE":
            # The model uses only the shape.
            return np.zeros(max(counts), dtype)
        case "BATCH_ITEM_SHAPE" | "BATCH_ITEM_SHAPE_FLATTEN":
            items = np.array([shape[1:] for shape in shapes for _ in range(shape[0])], dtype)
            return items if batch.kind == "BATCH_ITEM_SHAPE" else items.reshape(-1)
    raise internal(f"unknown batch input kind '{batch.kind}'")


def scatter(name: str, array: Array, shapes: list[list[int]]) -> list[Array]:
    """Splits a flat output into the shapes of the source input (BATCH_SCATTER_WITH_INPUT_SHAPE)."""
    counts = [prod(shape) for shape in shapes]
    if array.size != sum(counts):
        raise internal(
            f"batch output '{name}' has {array.size} elements, expected {sum(counts)} from the "
            "shapes of its source input"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    parts: list[Array] = []
    start = 0
    for count, shape in zip(counts, shapes, strict=True):
        parts.append(flat[start : start + count].reshape(shape))
        start += count
    return parts
