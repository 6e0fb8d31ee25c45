"""`reshape` of a ModelConfig: the shape that clients see <-> the shape that a model sees."""

from __future__ import annotations

from math import prod


def reshaped(shape: list[int], source: list[int], target: list[int], offset: int) -> list[int]:
    """Returns the shape of the same elements by the pattern `target`, where `shape` follows the
    pattern `source` after `offset` leading dimensions.

    Both patterns have the same number of -1, and these dimensions keep their sizes, in order. A
    shape that does not follow the pattern is returned as it is.
    """
    tail = shape[offset:]
    if len(tail) != len(source) or any(
        pattern not in (-1, dim) for dim, pattern in zip(tail, source, strict=True)
    ):
        return shape
    variable = iter(dim for dim, pattern in zip(tail, source, strict=True) if pattern == -1)
    result = [next(variable, -1) if pattern == -1 else pattern for pattern in target]
    if prod(result) != prod(tail):
        return shape
    return [*shape[:offset], *result]
