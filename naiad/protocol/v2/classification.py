"""The classification extension: an output tensor -> its top classes, as `<value>:<index>[:<label>]`
strings.

Order and number format are Triton's: descending, equal values by index, NaN first, floats with six
decimals.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from naiad.core.byte_strings import encode_byte_strings
from naiad.core.model_spec import ModelSpec
from naiad.core.tensor import Tensor
from naiad.errors import invalid_arg

_MAX_ELEMENTS = 1_000_000
_PIECE_CLASSES = 16_384
_UNSUPPORTED = frozenset(("BOOL", "BYTES", "FP16", "BF16"))


def classify(tensor: Tensor, count: int, spec: ModelSpec) -> Tensor:
    """The first dimension is the batch when the model batches; all others together are the
    classes."""
    if tensor.datatype in _UNSUPPORTED:
        raise invalid_arg(
            f"class result not available for output due to unsupported type '{tensor.datatype}'"
        )
    if tensor.element_count() > _MAX_ELEMENTS:
        raise invalid_arg("classification output tensor too large")
    is_batched = spec.max_batch_size > 0 and bool(tensor.shape)
    batch_size = tensor.shape[0] if is_batched else 1
    num_classes = prod(tensor.shape[1:] if is_batched else tensor.shape)
    count = min(count, num_classes)
    output = spec.outputs.get(tensor.name)
    labels = output.labels if output is not None else []
    rows = tensor.as_numpy().reshape(batch_size, num_classes)
    classes = bytearray()
    for row in rows:
        for texts in _top(row, count, labels):
            classes += encode_byte_strings(texts)
    return Tensor(
        tensor.name,
        "BYTES",
        [batch_size, count] if is_batched else [count],
        classes,
    )


def _top(row: np.ndarray[Any, Any], count: int, labels: list[str]) -> Iterator[list[str]]:
    """Yields the texts of the top classes, some at a time: a million of them take much memory."""
    is_float = row.dtype.kind == "f"
    # numpy sorts NaN last; a stable sort of the reversed row, reversed, keeps equal values in order
    order = (len(row) - 1 - np.argsort(row[::-1], kind="stable"))[::-1][:count]
    for start in range(0, len(order), _PIECE_CLASSES):
        part = order[start : start + _PIECE_CLASSES]
        yield [
            _text(value, index, labels, is_float=is_float)
            for value, index in zip(row[part].tolist(), part.tolist(), strict=True)
        ]


def _text(value: float, index: int, labels: list[str], *, is_float: bool) -> str:
    number = f"{value:f}" if is_float else str(value)
    label = labels[index] if index < len(labels) else ""
    return f"{number}:{index}:{label}" if label else f"{number}:{index}"
