"""Texts of a grammar, without the library that reads it: drawn at random, and recognised."""

from __future__ import annotations

import random

from naiad.llm.grammar.rules import (
    ROOT,
    Characters,
    Choice,
    Node,
    Repeat,
    Rule,
    Rules,
    Series,
    Text,
)

MANY = 3
"""Turns of a repeat without an end, at most."""


def derive(rules: Rules, source: random.Random, limit: int = 3000) -> str | None:
    """None: it grew beyond `limit` steps."""
    text: list[str] = []
    ahead: list[Node] = [Rule(ROOT)]
    for _ in range(limit):
        if not ahead:
            return "".join(text)
        match ahead.pop():
            case Text(words):
                text.append(words)
            case Characters(ranges):
                low, high = source.choice(ranges)
                text.append(chr(source.choice([low, high, source.randint(low, high)])))
            case Series(parts):
                ahead.extend(reversed(parts))
            case Choice(options):
                ahead.append(source.choice(options))
            case Repeat(inner, at_least, at_most):
                most = at_least + MANY if at_most is None else at_most
                ahead.extend(
                    [inner] * source.choice([at_least, most, source.randint(at_least, most)])
                )
            case Rule(name):
                ahead.append(rules[name])
    return None


def accepts(rules: Rules, text: str) -> bool:
    return len(text) in _ends(rules, Rule(ROOT), text, 0)


def _ends(rules: Rules, node: Node, text: str, at: int) -> set[int]:
    match node:
        case Text(words):
            return {at + len(words)} if text.startswith(words, at) else set()
        case Characters(ranges):
            return (
                {at + 1}
                if at < len(text) and any(low <= ord(text[at]) <= high for low, high in ranges)
                else set()
            )
        case Series(parts):
            places = {at}
            for part in parts:
                places = {end for place in places for end in _ends(rules, part, text, place)}
            return places
        case Choice(options):
            return {end for option in options for end in _ends(rules, option, text, at)}
        case Repeat(inner, at_least, at_most):
            return _repeat_ends(rules, inner, at_least, at_most, text, at)
        case Rule(name):
            return _ends(rules, rules[name], text, at)


def _repeat_ends(
    rules: Rules, inner: Node, at_least: int, at_most: int | None, text: str, at: int
) -> set[int]:
    places, found, turn = {at}, set[int](), 0
    while places:
        if turn >= at_least:
            places -= found
            found |= places
        if turn == at_most:
            break
        places = {end for place in places for end in _ends(rules, inner, text, place)}
        turn += 1
    return found
