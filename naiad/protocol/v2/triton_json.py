"""Reads request bodies as plain values, as Triton reads JSON, and reports syntax errors with
Triton's messages.

Codecs decode into typed structs first and come here only when that fails, or where a body has no
fixed structure.
Rule: no body makes this slow, because the exact scanner only reads small bodies. A body may be
      nested in any way, but the values that `parse` returns are not: what lies deeper than any
      field may be is replaced, and the field is then judged by its type.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_tensor import MAX_DEPTH, depth_error
from naiad.protocol.v2.triton_json_scan import JsonNumberError, JsonSyntaxError, Scanner

_MAX_SCANNED_BYTES = 64 * 1024
MAX_DEEP_BYTES = 8 * 1024 * 1024
"""To cut takes memory: a larger body is refused if it is too deep for the decoder."""
MAX_KEPT_DEPTH = MAX_DEPTH + 28
"""Room for the deepest tensor data that is refused as such, with the objects around it."""
_DECODER = msgspec.json.Decoder()
_NO_BRACKETS = bytes(octet for octet in range(256) if octet not in b"[{]}")
_STEPS = bytes(
    {ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(octet, 0) for octet in range(256)
)
_TOO_BIG = "Number too big to be stored in double."


Locate: TypeAlias = Callable[[int], int]
"""From an offset in the parsed text to the offset that an error reports."""


def parse(data: Buffer, locate: Locate = lambda offset: offset) -> Any:
    """Raises NaiadError. Text that is not UTF-8 becomes `surrogateescape` strings."""
    is_cut = len(data) <= MAX_DEEP_BYTES and _is_deep(data)
    body = _cut_depth(bytes(data)) if is_cut else _Body(data)
    try:
        return _DECODER.decode(body.text)
    except RecursionError:
        raise depth_error() from None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return _parse_dialect(body, locate)


class _Body(NamedTuple):
    text: Buffer
    offsets: np.ndarray[Any, np.dtype[np.int64]] | None = None
    """The offset in the body of each octet of `text`; None when nothing was cut."""

    def offset(self, num_octets: int) -> int:
        """The offset in the body after `num_octets` of the text."""
        if self.offsets is None:
            return num_octets
        return int(self.offsets[num_octets])


def _parse_dialect(body: _Body, locate: Locate) -> Any:
    text = bytes(body.text).decode("utf-8", "surrogateescape")
    try:
        if len(body.text) <= _MAX_SCANNED_BYTES:
            return Scanner(text).document()
        return json.loads(text, parse_int=_integer, parse_float=_double)
    except JsonSyntaxError as fault:
        raise scan_error(fault, locate(body.offset(_num_octets(text, fault.offset)))) from None
    except json.JSONDecodeError as error:
        offset = locate(body.offset(_num_octets(text, error.pos)))
        raise syntax_error("Invalid value.", offset) from None
    except OverflowError:
        raise invalid_arg(f"failed to parse the request JSON buffer: {_TOO_BIG}") from None
    except RecursionError:
        raise depth_error() from None


def _integer(digits: str) -> int | float:
    """Numbers beyond what a double holds are not integers: Python refuses to read many digits."""
    return int(digits) if len(digits) <= 309 else _double(digits)


def _double(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise OverflowError
    return value


def scan_error(fault: JsonSyntaxError, offset: int) -> NaiadError:
    """The error for a fault that the exact scanner has found, at an offset in the body."""
    error = syntax_error(fault.message, offset)
    return invalid_arg(error.message) if isinstance(fault, JsonNumberError) else error


def syntax_error(message: str, offset: int) -> NaiadError:
    return internal(f"failed to parse the request JSON buffer: {message} at {offset}")


def _num_octets(text: str, num_characters: int) -> int:
    return len(text[:num_characters].encode("utf-8", "surrogateescape"))


# Depth.


def _is_deep(data: Buffer) -> bool:
    """Counts brackets, also those in strings."""
    brackets = bytes(data).translate(_STEPS, _NO_BRACKETS)
    if len(brackets) <= MAX_KEPT_DEPTH:
        return False
    heights = np.cumsum(np.frombuffer(brackets, np.int8), dtype=np.int32)
    return int(heights.max()) > MAX_KEPT_DEPTH


def _cut_depth(data: bytes) -> _Body:
    """Replaces each value that is nested too deeply by the number 0."""
    # Escapes are masked first, so that every quotation mark that is left begins or ends a string.
    plain = data.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    octets = np.frombuffer(plain, np.uint8)
    is_text = np.cumsum(octets == ord('"'), dtype=np.uint8) & 1
    steps = np.frombuffer(plain.translate(_STEPS), np.int8) * (1 - is_text.view(np.int8))
    is_deep = np.cumsum(steps, dtype=np.int32) > MAX_KEPT_DEPTH
    was_deep = np.concatenate(([False], is_deep[:-1]))
    is_start = is_deep & ~was_deep
    kept = np.flatnonzero(is_start | ~(is_deep | was_deep))
    cut = np.frombuffer(data, np.uint8).copy()
    cut[is_start] = ord("0")
    return _Body(cut[kept].tobytes(), np.append(kept, len(data)))
