"""Typed access to plain JSON values; values of the wrong type get Triton's error messages.

`field` names the value that is read. The message is `Unable to parse '<field>': <detail>`, as
clients know it.
"""

from __future__ import annotations

from typing import Any

from naiad.errors import NaiadError, internal

_UINT64_END = 1 << 64
_INT64_END = 1 << 63


def mismatch(kind: str) -> str:
    """`kind` is the expected type: string, boolean, array, ..."""
    return f"attempt to access JSON non-{kind} as {'double' if kind == 'number' else kind}"


def parse_error(field: str, detail: str) -> NaiadError:
    return internal(f"Unable to parse '{field}': {detail}")


def member(value: Any, name: str) -> Any:
    """The member of an object. Triton's error is the same for a missing member and for a value that
    is not an object."""
    if isinstance(value, dict) and name in value:
        return value[name]
    raise parse_error(name, f"attempt to access non-existing object member '{name}'")


def find(value: Any, name: str) -> Any:
    """None when the member is missing; JSON's own null is returned as `Null`."""
    if isinstance(value, dict) and name in value:
        member = value[name]
        return NULL if member is None else member
    return None


class Null:
    pass


NULL = Null()


def as_string(value: Any, field: str) -> str:
    if isinstance(value, str):
        return clean_text(value)
    raise parse_error(field, mismatch("string"))


def clean_text(text: str) -> str:
    """Names, ids and parameters are passed on as UTF-8: other bytes of the client become U+FFFD."""
    return (
        text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    )


def as_boolean(value: Any, field: str) -> bool:
    if isinstance(value, bool):
        return value
    raise parse_error(field, mismatch("boolean"))


def as_array(value: Any, field: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise parse_error(field, mismatch("array"))


def is_unsigned(value: Any) -> bool:
    return type(value) is int and 0 <= value < _UINT64_END


def is_signed(value: Any) -> bool:
    return type(value) is int and -_INT64_END <= value < _INT64_END


def as_unsigned(value: Any, field: str) -> int:
    if is_unsigned(value):
        return int(value)
    raise parse_error(field, mismatch("unsigned-integer"))
