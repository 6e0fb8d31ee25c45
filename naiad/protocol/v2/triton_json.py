"""Reads request bodies as plain values, as Triton reads JSON, and reports syntax errors with
Triton's messages.

Codecs decode into typed structs first and come here only when that fails, or where a body has no
fixed structure.
Rule: no body makes this slow, because the exact scanner only reads small bodies.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.triton_json_scan import MAX_DEPTH, JsonDepthError, JsonSyntaxError, Scanner

_MAX_SCANNED_BYTES = 64 * 1024
_DECODER = msgspec.json.Decoder()
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(octet for octet in range(256) if octet not in b"[{]}")


def parse(data: Buffer) -> Any:
    """Raises NaiadError. Text that is not UTF-8 becomes `surrogateescape` strings."""
    try:
        value = _DECODER.decode(data)
    except RecursionError:
        raise depth_error() from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _parse_dialect(bytes(data))
    _check_depth(data, value)
    return value


def depth_error() -> NaiadError:
    return invalid_arg(f"JSON nesting depth exceeds maximum allowed limit ({MAX_DEPTH})")


def _parse_dialect(data: bytes) -> Any:
    text = data.decode("utf-8", "surrogateescape")
    try:
        if len(data) <= _MAX_SCANNED_BYTES:
            return Scanner(text).document()
        value = json.loads(text)
    except JsonSyntaxError as fault:
        raise _syntax_error(fault.message, text, fault.offset) from None
    except json.JSONDecodeError as error:
        raise _syntax_error("Invalid value.", text, error.pos) from None
    except (JsonDepthError, RecursionError):
        raise depth_error() from None
    _check_depth(data, value)
    return value


def _syntax_error(message: str, text: str, offset: int) -> NaiadError:
    num_bytes = len(text[:offset].encode("utf-8", "surrogateescape"))
    return internal(f"failed to parse the request JSON buffer: {message} at {num_bytes}")


def _check_depth(data: Buffer, value: Any) -> None:
    """Brackets are counted first, also those in strings; only a suspicious body is walked."""
    brackets = bytes(data).translate(_STEPS, _NO_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return
    heights = np.cumsum(np.frombuffer(brackets, np.int8), dtype=np.int32)
    if int(heights.max()) > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise depth_error()


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while True:
        level = [item for item in level if isinstance(item, (list, dict))]
        if not level:
            return depth
        depth += 1
        level = [
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        ]
