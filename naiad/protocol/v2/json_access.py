"""Typed access to plain JSON values with Triton's words for what does not fit.

`field` names what is being read; the words are `Unable to parse '<field>': <detail>`, as clients
know them.
"""

from __future__ import annotations

from typing import Any

from naiad.errors import NaiadError, internal

_UINT64_END = 1 << 64
_INT64_END = 1 << 63


def mismatch(kind: str) -> str:
    """`kind` is what was wanted: string, boolean, array, ..."""
    return f"attempt to access JSON non-{kind} as {'double' if kind == 'number' else kind}"


def parse_error(field: str, detail: str) -> NaiadError:
    return internal(f"Unable to parse '{field}': {detail}")


def member(value: Any, name: str) -> Any:
    """The member of an object; Triton says the same of a missing one and of a value that is no
    object."""
    if isinstance(value, dict) and name in value:
        return value[name]
    raise parse_error(name, f"attempt to access non-existing object member '{name}'")


def find(value: Any, name: str) -> Any:
    """None when it is not there: JSON's own null comes as `Null`, so that it is not taken for
    absence."""
    if isinstance(value, dict) and name in value:
        found = value[name]
        return NULL if found is None else found
    return None


class Null:
    pass


NULL = Null()


def as_string(value: Any, field: str) -> str:
    if isinstance(value, str):
        return clean_text(value)
    raise parse_error(field, mismatch("string"))


def clean_text(text: str) -> str:
    """Names, ids and parameters travel on as UTF-8: bytes of the client that are none become
    U+FFFD."""
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
