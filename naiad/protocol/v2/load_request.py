"""The body of a load request: `config` and whole files, as base64, in one JSON object.

In:  the body, which may be as large as any request. Out: the parameters of the load.
Rule: a file is decoded piece by piece from the text of the body; no step of it holds the
      interpreter lock for long, so that a thread can do this next to the event loop.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import Any, Final

import msgspec
import numpy as np

from naiad.core.tensor import Buffer
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.protocol.v2.json_access import find, mismatch
from naiad.protocol.v2.json_split import MAX_REST_BYTES, SLICE_BYTES, parse_large
from naiad.protocol.v2.json_string_mask import StringMask

_PIECE_BYTES: Final = 256 * 1024


def decode_load_parameters(body: Buffer) -> dict[str, str | bytes]:
    """Raises NaiadError."""
    if not len(body):
        return {}
    nonce = secrets.token_hex(16)  # the client cannot guess it, so it cannot write a mark
    rest, strings = _cut_strings(body, nonce)
    parameters = find(parse_large(rest, MAX_REST_BYTES), "parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise internal("attempt to get members for non-object")
    return {name: _parameter(name, value, nonce, strings) for name, value in parameters.items()}


def _parameter(name: str, value: Any, nonce: str, strings: list[memoryview]) -> str | bytes:
    if not isinstance(value, str):
        raise internal(mismatch("string"))
    start, _, number = value.partition(":")
    text = strings[int(number)] if start == nonce else None
    if name == "config":
        return value if text is None else _read_config(text)
    if not name.startswith("file:"):
        raise invalid_arg(f"Unrecognized load parameter '{name}' with type 'STRING'")
    try:
        return _decode_base64(value.encode() if text is None else text[1:-1])
    except (binascii.Error, ValueError):
        raise invalid_arg(f"load parameter '{name}' is not valid base64") from None


def _read_config(text: memoryview) -> str:
    if len(text) > MAX_REST_BYTES:
        raise invalid_arg(f"load parameter 'config' has more than {MAX_REST_BYTES} bytes")
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.MsgspecError, UnicodeError):
        raise internal("Unable to parse 'config': it is not a JSON string") from None


def _decode_base64(text: Buffer) -> bytes:
    """Raises ValueError. JSON may write a slash as an escape."""
    parts: list[bytes] = []
    carry = b""
    for start in range(0, len(text), _PIECE_BYTES):
        piece = carry + bytes(text[start : start + _PIECE_BYTES])
        end = len(piece) - piece.endswith(b"\\")
        whole = piece[:end].replace(b"\\/", b"/")
        size = len(whole) // 4 * 4
        carry = whole[size:] + piece[end:]
        parts.append(base64.b64decode(whole[:size], validate=True))
        is_last = start + _PIECE_BYTES >= len(text)
        if b"=" in whole[:size] and not (is_last and not carry):
            raise ValueError("padding before the end")
    parts.append(base64.b64decode(carry, validate=True))
    return b"".join(parts)


def _cut_strings(body: Buffer, nonce: str) -> tuple[bytes, list[memoryview]]:
    """Puts a mark in place of each string that is longer than a slice. Returns the rest, and the
    strings with their quotation marks."""
    text, octets, mask = memoryview(body), np.frombuffer(body, np.uint8), StringMask()
    parts: list[bytes] = []
    strings: list[memoryview] = []
    kept_from = opened = 0
    for start in range(0, len(octets), SLICE_BYTES):
        was_inside = mask.is_inside
        outside = mask.outside(octets[start : start + SLICE_BYTES])
        if outside is None:
            continue
        places = np.flatnonzero(outside)
        if was_inside and len(places):
            end = start + int(places[0]) + 1
            if end - opened > SLICE_BYTES:
                mark = b'"%b:%d"' % (nonce.encode(), len(strings))
                parts += (bytes(text[kept_from:opened]), mark)
                strings.append(text[opened:end])
                kept_from = end
        if mask.is_inside and (len(places) or not was_inside):
            opened = start + (int(places[-1]) + 1 if len(places) else 0)
    rest_bytes = sum(map(len, parts)) + len(text) - kept_from
    if rest_bytes > MAX_REST_BYTES:
        raise _too_large()
    parts.append(bytes(text[kept_from:]))
    return b"".join(parts), strings


def _too_large() -> NaiadError:
    return invalid_arg(
        f"the load request has more than {MAX_REST_BYTES} bytes outside of its files"
    )
