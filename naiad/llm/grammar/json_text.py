"""Nodes for JSON strings and arbitrary JSON values: strings of a given length, keys other than some
names, any value.

JSON is written on one line, with ", " and ": " as separators, because most models were trained on
that.
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
# Surrogates are left out: two of them would be one character, and one alone is not a character.
_CODE = choice(
    series(_NOT_D, repeat(_HEX, 3, 3)),
    series(Characters(of("dD")), Characters(((0x30, 0x37),)), repeat(_HEX, 2, 2)),
)
ESCAPE = series("\\", choice(Characters(of('"\\/bfnrt')), series("u", _CODE)))
PLAIN = Characters(UNESCAPED)
MAX_CHAIN = 256


def free_rules() -> Rules:
    """Returns the rules that VALUE, OBJECT, ARRAY, STRING, INTEGER and NUMBER refer to."""
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
    """Adds a rule for every number of characters that may still follow, shared by strings of all
    lengths. Very long strings have no escapes instead."""
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


def key_other_than(names: list[str], rules: Rules, prefix: str) -> Node:
    """Returns a node for a string of plain characters that is not one of `names`. Adds a rule for
    every prefix of the names."""
    free = repeat(PLAIN, 0, None)

    def after(beginning: str) -> Node:
        name = f"{prefix}-{len(rules)}"
        rules[name] = EMPTY  # reserves the name
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
