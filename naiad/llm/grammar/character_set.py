"""Sets of characters as sorted ranges of code points, and how they are written inside a JSON
string.

No set contains surrogates, because a response is UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from naiad.llm.grammar.rules import Characters, Node, choice, series

Ranges: TypeAlias = tuple[tuple[int, int], ...]
ALL: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_ESCAPES = {
    0x22: '\\"',
    0x5C: "\\\\",
    0x08: "\\b",
    0x0C: "\\f",
    0x0A: "\\n",
    0x0D: "\\r",
    0x09: "\\t",
}


def united(*sets: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(each for one in sets for each in one):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return tuple(merged)


def shared(one: Ranges, other: Ranges) -> Ranges:
    pairs = ((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)
    return united((low, high) for low, high in pairs if low <= high)


def others(ranges: Ranges) -> Ranges:
    """Returns all characters that are not in `ranges`."""
    rest: list[tuple[int, int]] = []
    start = 0
    for low, high in united(ranges):
        rest.append((start, low - 1))
        start = high + 1
    rest.append((start, 0x10FFFF))
    return shared(united((low, high) for low, high in rest if low <= high), ALL)


def of(text: str) -> Ranges:
    return united((ord(character), ord(character)) for character in text)


UNESCAPED = others(united([(0, 0x1F)], of('"\\')))
"""Characters that need no escape inside a JSON string."""


def in_json(ranges: Ranges) -> Node:
    """Returns a node for one of the characters as JSON writes it. Rare control characters are left
    out unless there is nothing else."""
    options: list[Node] = []
    plain = shared(ranges, UNESCAPED)
    if plain:
        options.append(Characters(plain))
    special = [
        code
        for low, high in shared(ranges, united([(0, 0x1F)], of('"\\')))
        for code in range(low, high + 1)
    ]
    short = [code for code in special if code in _ESCAPES]
    if short:
        options.append(series("\\", Characters(of("".join(_ESCAPES[code][1] for code in short)))))
    if not options:
        options += [series(f"\\u{code:04x}") for code in special]
    return choice(*options)
