"""Strings and free values of JSON as nodes: texts of a length, keys that are none of some names,
anything at all.

Written on one line, with ", " and ": " between things, as most models were taught.
"""

from __future__ import annotations

import itertools

from naiad.llm.grammar import number
from naiad.llm.grammar.character_set import UNESCAPED, in_json, of, others, shared
from naiad.llm.grammar.rules import (
    EMPTY,
    Characters,
    Node,
    Rule,
    Rules,
    choice,
    optional,
    repeat,
    series,
)

VALUE = Rule("json-value")
OBJECT = Rule("json-object")
ARRAY = Rule("json-array")
STRING = Rule("json-string")
INTEGER = Rule("json-integer")
NUMBER = Rule("json-number")
_HEX = Characters(((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)))
_NOT_D = Characters(((0x30, 0x39), (0x41, 0x43), (0x45, 0x46), (0x61, 0x63), (0x65, 0x66)))
# Surrogates are left out: two of them would be one character, and one alone is none.
_CODE = choice(
    series(_NOT_D, repeat(_HEX, 3, 3)),
    series(Characters(of("dD")), Characters(((0x30, 0x37),)), repeat(_HEX, 2, 2)),
)
ESCAPE = series("\\", choice(Characters(of('"\\/bfnrt')), series("u", _CODE)))
PLAIN = Characters(UNESCAPED)
MAX_CHAIN = 256


def free_rules() -> Rules:
    """What VALUE, OBJECT, ARRAY, STRING, INTEGER and NUMBER stand for."""
    pair = series(STRING, ": ", VALUE)
    rules: Rules = {}
    return {
        "json-string": sized_string(0, None, rules),
        **rules,
        "json-object": series(
            "{", optional(series(pair, repeat(series(", ", pair), 0, None))), "}"
        ),
        "json-array": series(
            "[", optional(series(VALUE, repeat(series(", ", VALUE), 0, None))), "]"
        ),
        "json-integer": number.INTEGER,
        "json-number": number.NUMBER,
        "json-value": choice(STRING, NUMBER, OBJECT, ARRAY, "true", "false", "null"),
    }


def sized_string(at_least: int, at_most: int | None, rules: Rules) -> Node:
    """A rule for every character that may still come, shared by texts of all lengths. Very long
    ones do without escapes instead."""
    if at_most is not None and at_most > MAX_CHAIN:
        return series('"', repeat(PLAIN, at_least, at_most), '"')
    lengths = [
        (needed, None if at_most is None else at_most - at_least)
        for needed in range(at_least, 0, -1)
    ]
    lengths += (
        [(0, None)]
        if at_most is None
        else [(0, left) for left in range(at_most - at_least, -1, -1)]
    )
    for (needed, left), following in itertools.zip_longest(lengths, lengths[1:]):
        after = Rule(_text_name(*(following or (0, None))))
        further = choice(series(PLAIN, after), series(Rule("json-escape"), after))
        rules[_text_name(needed, left)] = (
            further if needed else series('"') if left == 0 else choice('"', further)
        )
    rules["json-escape"] = ESCAPE
    return series('"', Rule(_text_name(*lengths[0])))


def _text_name(needed: int, left: int | None) -> str:
    return f"text-{needed}-{'any' if left is None else left}"


def key_beside(names: list[str], rules: Rules, prefix: str) -> Node:
    """A string that is none of `names`, in plain characters. A rule for every beginning of them."""
    free = repeat(PLAIN, 0, None)

    def after(beginning: str) -> Node:
        name = f"{prefix}-{len(rules)}"
        rules[name] = EMPTY  # its place
        longer = sorted(
            {
                each[len(beginning)]
                for each in names
                if each.startswith(beginning) and len(each) > len(beginning)
            }
        )
        options: list[Node] = [] if beginning in names else [EMPTY]
        options += [
            series(in_json(of(character)), after(beginning + character)) for character in longer
        ]
        rest = shared(others(of("".join(longer))), UNESCAPED)
        options.append(series(Characters(rest), free))
        rules[name] = choice(*options)
        return Rule(name)

    return series('"', after(""), '"')
