"""Parsers for the values of perf_analyzer's flags, such as `start:end:step`.

Each function raises ValueError with a message that says what was expected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Range(msgspec.Struct, frozen=True):
    start: float
    end: float
    step: float
    has_end: bool = False
    """True if the text has an end. Then `end` 0 means until the latency threshold is exceeded."""


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected {', '.join(choices[:-1])} or {choices[-1]}, got '{text}'")
        return text.lower()

    return parse


def number_range(text: str) -> Range:
    parts = text.split(":")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if (
        not 1 <= len(numbers) <= 3
        or numbers[0] <= 0
        or min(numbers) < 0
        or (len(numbers) == 3 and numbers[2] <= 0)
    ):
        raise ValueError(f"expected start[:end[:step]] with positive numbers, got '{text}'")
    start = numbers[0]
    end = numbers[1] if len(numbers) > 1 else start
    if end and end < start:
        raise ValueError(f"the end of a range must not be smaller than its start, got '{text}'")
    return Range(start, end, numbers[2] if len(numbers) > 2 else 1.0, len(numbers) > 1)


def whole_range(text: str) -> Range:
    values = number_range(text)
    if any(value != int(value) for value in (values.start, values.end, values.step)):
        raise ValueError(f"expected whole numbers, got '{text}'")
    return values


def tensor_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, dimensions = text.rpartition(":")
    try:
        shape = tuple(int(dimension) for dimension in dimensions.split(","))
    except ValueError:
        shape = ()
    if not colon or not name or not shape or min(shape) < 0:
        raise ValueError(f"expected name:d1,d2,..., got '{text}'")
    return name, shape


def request_parameter(text: str) -> tuple[str, Any]:
    """Parses name:value:type, where type is int, uint, bool, string or double."""
    head, _, kind = text.rpartition(":")
    name, colon, value = head.partition(":")
    if not colon or not name:
        raise ValueError(f"expected name:value:type, got '{text}'")
    try:
        match kind.lower():
            case "int" | "uint":
                return name, int(value)
            case "double" | "float":
                return name, float(value)
            case "string":
                return name, value
            case "bool" if value.lower() in ("true", "false"):
                return name, value.lower() == "true"
    except ValueError:
        pass
    raise ValueError(
        f"expected name:value:type with type int, bool, double or string, got '{text}'"
    )


def header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise ValueError(f"expected 'Header:Value', got '{text}'")
    return name.strip(), value.strip()


class IdRange(msgspec.Struct, frozen=True):
    start: int
    end: int = 0
    """Exclusive end; 0 for no end."""


def id_range(text: str) -> IdRange:
    start, _, end = text.partition(":")
    try:
        ids = IdRange(int(start), int(end or 0))
    except ValueError:
        ids = IdRange(0)
    if ids.start < 1 or (ids.end and ids.end <= ids.start):
        raise ValueError(f"expected start[:end] with start at least 1, got '{text}'")
    return ids


def goodput_limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    try:
        return name.strip(), float(value)
    except ValueError:
        raise ValueError(
            f"expected metric:limit, e.g. time_to_first_token:200, got '{text}'"
        ) from None


def composing_models(text: str) -> list[tuple[str, str]]:
    entries = [entry.strip().partition(":") for entry in text.split(",") if entry.strip()]
    return [(name, version) for name, _, version in entries]
