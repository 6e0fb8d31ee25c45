"""Changes bytes and JSON at random. The same input and the same state of the random generator make
the same output."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 64 * 1024
NUMBERS = (
    0,
    1,
    7,
    127,
    128,
    255,
    256,
    32767,
    65535,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
    (1 << 64) - 1,
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308,
    1e-320, "", "a", "\0", "\ud800", "é", "🦑", "\\u0000", "../../etc/passwd", "x" * 300, [], {},
    [[]], [None], {"": None}, [[[[[[]]]]]], "NaN", "Infinity", "true", "-1",
)  # fmt: skip
TEXTS = (
    b"NaN", b"-Infinity", b"1e999", b"-0", b"01", b"1" * 400, b'"\\ud800"', b'"\\u0000"', b"\xff",
    b"[" * 200, b'{"a":' * 200, b'"' + b"\xed\xa0\x80" + b'"', b"tru", b"", b"1.", b"// x\n",
)  # fmt: skip


def mutated(data: bytes, other: bytes, tokens: Sequence[bytes], chance: random.Random) -> bytes:
    """Returns `data` after a few changes. `other` is an input to splice with."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 6, 12))):
        _change(changed, other, tokens, chance)
    return bytes(changed[:MAX_BYTES])


def _change(data: bytearray, other: bytes, tokens: Sequence[bytes], chance: random.Random) -> None:
    position = chance.randrange(len(data) + 1)
    end = min(len(data), position + chance.choice((1, 2, 4, 8, 40)))
    kind = chance.randrange(10)
    if kind == 0 and position < len(data):
        data[position] ^= 1 << chance.randrange(8)
    elif kind == 1 and position < len(data):
        data[position] = chance.randrange(256)
    elif kind == 2:
        del data[position:end]
    elif kind == 3:
        data[position:position] = data[position:end] * chance.choice((1, 2, 50))
    elif kind == 4:
        number = struct.pack(chance.choice("<>") + "Q", chance.choice(NUMBERS))
        size = chance.choice((1, 2, 4, 8))
        data[position : position + size] = number[:size]
    elif kind == 5 and other:
        start = chance.randrange(len(other))
        data[position:end] = other[start : start + chance.choice((4, 16, 64, 256))]
    elif kind == 6 and tokens:
        data[position : chance.choice((position, end))] = chance.choice(tokens)
    elif kind == 7:
        data[position:position] = chance.randbytes(chance.choice((1, 2, 8)))
    elif kind == 8:
        del data[position:]
    elif kind == 9 and position < len(data):
        digits = b"%d" % chance.choice((*NUMBERS, -1))
        data[position:end] = digits


def mutated_json(data: bytes, chance: random.Random) -> bytes:
    """Changes a value, a key or the text of a JSON document; other data is returned as it is."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return data
    for _ in range(chance.choice((1, 1, 2, 4))):
        document = _changed_value(document, chance)
    try:
        text = json.dumps(document, ensure_ascii=chance.random() < 0.7)
        encoded = text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return data
    if chance.random() < 0.15 and b":" in encoded:
        # What json.dumps never writes, in the place of some value.
        place = chance.choice([index for index, octet in enumerate(encoded) if octet == ord(":")])
        encoded = encoded[: place + 1] + chance.choice(TEXTS) + encoded[place + 1 :]
    return encoded


def _changed_value(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        return _changed_object(dict(value), chance)
    if isinstance(value, list) and value and chance.random() < 0.9:
        return _changed_array(list(value), chance)
    if isinstance(value, int) and chance.random() < 0.3:
        return value + chance.choice((-1, 1))
    if isinstance(value, str) and chance.random() < 0.4:
        return value + chance.choice(("", "\0", "é", value, " ", "\ud83d"))
    return chance.choice(VALUES)


def _changed_object(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    key = chance.choice(list(value))
    kind = chance.randrange(8)
    if kind == 0:
        del value[key]
    elif kind == 1:
        value[chance.choice(("", key + "x", "\0", "id", "name", "type", "data"))] = value[key]
    elif kind == 2:
        value[key] = [value[key]] * chance.choice((0, 1, 2, 40))
    elif kind == 3:
        value[key] = chance.choice(list(value.values()))
    else:
        value[key] = _changed_value(value[key], chance)
    return value


def _changed_array(value: list[Any], chance: random.Random) -> list[Any]:
    index = chance.randrange(len(value))
    kind = chance.randrange(8)
    if kind == 0:
        del value[index]
    elif kind == 1:
        value[index:index] = [value[index]] * chance.choice((1, 2, 100))
    elif kind == 2:
        value.append(chance.choice(VALUES))
    else:
        value[index] = _changed_value(value[index], chance)
    return value
