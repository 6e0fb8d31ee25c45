"""The flat form of /infer: a JSON object whose keys are the model's inputs.

In:  a flat object, as /generate reads it, or its text. Out: a request.
Beyond /generate, which is Triton's: lists may be nested as the tensor is, so that a batch or an
image can be sent as it prints; null is refused with the input's name; and the lists of inputs count
as tensor data, so they may be long.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from naiad.core.datatype import DATATYPES
from naiad.core.model_spec import ModelSpec, TensorSpec
from naiad.core.tensor import Allocate, Buffer, Tensor
from naiad.errors import NaiadError, invalid_arg
from naiad.protocol.v2.generate import Conversion
from naiad.protocol.v2.json_data import LargeData
from naiad.protocol.v2.json_split import SLICE_BYTES, Span, split_flat
from naiad.protocol.v2.json_string_mask import StringMask
from naiad.protocol.v2.json_tensor import check_depth, flatten, pack_values
from naiad.protocol.v2.triton_json import parse

_COMMA, _OPEN = ord(","), ord("[")
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1


def may_be_flat(body: Buffer) -> bool:
    """False for a body that may have `inputs`, which is what makes it Triton's form."""
    text = memoryview(body)
    return not any(
        b'"inputs"' in bytes(text[start : start + SLICE_BYTES + 8])
        for start in range(0, len(text), SLICE_BYTES)
    )


def parse_large(
    text: Buffer, spec: ModelSpec, max_rest_bytes: int, allocate: Allocate | None = None
) -> tuple[Any, LargeData]:
    """Parses a body in slices: long lists of inputs stay in the text, and marks stand for them.
    Raises NaiadError."""
    split = split_flat(text, spec.inputs, max_rest_bytes)
    return parse(split.rest, split.locate), LargeData(text, split, allocate)


class FlatConversion(Conversion):
    def __init__(self, spec: ModelSpec, max_bytes: int, large: LargeData | None = None) -> None:
        super().__init__(spec, max_bytes)
        self._large = large

    def tensor(self, tensor: TensorSpec, value: Any) -> Tensor:
        large = self._large
        span = large.split.span(value) if large is not None and isinstance(value, list) else None
        if large is not None and span is not None:
            return self._large_tensor(tensor, large, span)
        values = flatten(value)
        if None in values:
            raise invalid_arg(f"input '{tensor.name}' has a null where a value is expected")
        if not isinstance(value, list) or not any(isinstance(item, list) for item in value):
            shape = self.elements_shape(tensor, len(values))
        else:
            shape = self._nested_shape(tensor, _shape_of(value, tensor.name))
        if tensor.datatype != "BYTES":
            self.count_bytes(tensor.name, len(values) * DATATYPES[tensor.datatype].byte_size)
        data = pack_values(values, tensor.datatype, len(values), tensor.name) if values else b""
        if tensor.datatype == "BYTES":
            self.count_bytes(tensor.name, len(data))
        return Tensor(tensor.name, tensor.datatype, shape, data)

    def _large_tensor(self, tensor: TensorSpec, large: LargeData, span: Span) -> Tensor:
        check_depth(span.depth)
        found = _SpanShape(large.text, span, tensor.name).read()
        count = prod(found)
        shape = (
            self.elements_shape(tensor, count)
            if len(found) == 1
            else self._nested_shape(tensor, found)
        )
        if tensor.datatype != "BYTES":
            self.count_bytes(tensor.name, count * DATATYPES[tensor.datatype].byte_size)
        data = large.pack_span(span, tensor.datatype, count, tensor.name)
        if tensor.datatype == "BYTES":
            self.count_bytes(tensor.name, len(data))
        return Tensor(tensor.name, tensor.datatype, shape, data)

    def elements_shape(self, tensor: TensorSpec, count: int) -> list[int]:
        """The shape of elements in a row. Raises NaiadError."""
        try:
            shape = self.shape(tensor, count)
        except NaiadError:
            shape = []
        if not shape or prod(shape) != count:
            raise invalid_arg(
                f"input '{tensor.name}' has {_values(count)}, expected shape {tensor.shape}"
            )
        return shape

    def _nested_shape(self, tensor: TensorSpec, found: list[int]) -> list[int]:
        """A batch may have one item and no brackets of its own."""
        is_batched = self._spec.max_batch_size > 0
        shape = [1, *found] if is_batched and len(found) == len(tensor.dims) else found
        items = shape[1:] if is_batched else shape
        if len(items) != len(tensor.dims) or any(
            dim not in (-1, size) for dim, size in zip(tensor.dims, items, strict=True)
        ):
            raise invalid_arg(
                f"input '{tensor.name}' has shape {found} in the JSON, expected shape "
                f"{tensor.shape}"
            )
        return shape


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def _uneven(name: str) -> NaiadError:
    return invalid_arg(f"input '{name}' has nested lists of different lengths")


def _shape_of(value: list[Any], name: str) -> list[int]:
    """The lengths of nested lists, which must be equal at each level. Raises NaiadError."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and isinstance(level[0], list):
        if any(not isinstance(item, list) or len(item) != len(level[0]) for item in level):
            raise _uneven(name)
        shape.append(len(level[0]))
        level = [item for items in level for item in items]
    if any(isinstance(item, list) for item in level):
        raise _uneven(name)
    return shape


class _SpanShape:
    """Reads the shape of nested lists from their text: the commas of each list of a level are
    counted, and must be equally many. What stands between them is checked when it is packed."""

    def __init__(self, text: Buffer, span: Span, name: str) -> None:
        self._octets = np.frombuffer(memoryview(text)[span.start : span.end], np.uint8)
        self._name = name
        self._commas: list[int | None] = [None] * span.depth
        """In each finished list of a level, the same in all."""
        self._open: list[int | None] = [None] * span.depth
        """In the list of a level that has begun last, as far as it was read."""
        self._lists = [0] * span.depth

    def read(self) -> list[int]:
        """Raises NaiadError."""
        mask, depth = StringMask(), 0
        for start in range(0, len(self._octets), SLICE_BYTES):
            part = self._octets[start : start + SLICE_BYTES]
            outside = mask.outside(part)
            steps = _STEPS[part]
            if outside is not None:
                steps = steps * outside
            depths = np.cumsum(steps, dtype=np.int32) + depth
            depth = int(depths[-1])
            is_comma = part == _COMMA if outside is None else (part == _COMMA) & outside
            for level in range(len(self._lists)):
                at_level = depths == level + 1
                self._count(
                    level,
                    np.flatnonzero(at_level & (steps == 1)),
                    np.flatnonzero(at_level & is_comma),
                )
        for level in range(len(self._lists)):
            self._finish(level, [self._open[level]])
        shape = [(commas or 0) + 1 for commas in self._commas]
        if self._lists != [prod(shape[:level]) for level in range(len(shape))]:
            raise _uneven(self._name)
        return shape

    def _count(self, level: int, opens: Any, commas: Any) -> None:
        counts = np.bincount(
            np.searchsorted(opens, commas, "right"), minlength=len(opens) + 1
        ).tolist()
        before = self._open[level]
        counts[0] = None if before is None else before + counts[0]
        self._finish(level, counts[:-1])
        self._open[level] = counts[-1]
        self._lists[level] += len(opens)

    def _finish(self, level: int, counts: list[int | None]) -> None:
        for count in {count for count in counts if count is not None}:
            if self._commas[level] not in (None, count):
                raise _uneven(self._name)
            self._commas[level] = count
