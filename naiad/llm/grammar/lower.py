"""Rewrites repeats of anything but single characters as rules that end with themselves.

The library turns a repeated node into a separate rule, and at the end of a rule it does not know
what may follow: it would test every token that is longer than one repetition again at each step,
40 ms instead of 10 us for a JSON string. With a rule that ends with itself, everything is known
when the grammar is compiled.
"""

from __future__ import annotations

from naiad.llm.grammar.rules import (
    EMPTY,
    Characters,
    Choice,
    Node,
    Repeat,
    Rule,
    Rules,
    Series,
    Text,
    choice,
    repeat,
    series,
)

MAX_INLINE = 12
"""Maximum number of nodes in a repeated part that is copied for each repetition; a larger part
becomes a rule."""


def lower(rules: Rules) -> Rules:
    lowered: Rules = {}
    for name, node in rules.items():
        lowered[name] = EMPTY  # keeps the order
        lowered[name] = _Lowering(name, lowered).node(node)
    return lowered


class _Lowering:
    def __init__(self, name: str, rules: Rules) -> None:
        self._name = name
        self._rules = rules
        self._count = 0

    def node(self, node: Node) -> Node:
        match node:
            case Series(parts):
                return series(*(self.node(part) for part in parts))
            case Choice(options):
                return choice(*(self.node(option) for option in options))
            case Repeat(inner, at_least, at_most):
                full = _full(inner)
                return self._repeat(self.node(full), at_least if full == inner else 0, at_most)
            case _:
                return node

    def _repeat(self, node: Node, at_least: int, at_most: int | None) -> Node:
        if (
            isinstance(node, Characters)
            or (at_least, at_most) == (0, 1)
            or (isinstance(node, Text) and len(node.text) == 1)
        ):
            return Repeat(node, at_least, at_most)
        options: list[Node] = list(node.options) if isinstance(node, Choice) else [node]
        if _size(node) > MAX_INLINE and at_most is not None:
            options = [self._rule(node)]
        if at_most is None:
            rest: Node = self._rule(EMPTY)
            assert isinstance(rest, Rule)
            self._rules[rest.name] = choice(*(series(option, rest) for option in options), EMPTY)
        else:
            rest = EMPTY
            for _ in range(at_most - at_least):
                rest = self._rule(choice(*(series(option, rest) for option in options), EMPTY))
        for _ in range(at_least):
            rest = self._rule(choice(*(series(option, rest) for option in options)))
        return rest

    def _rule(self, node: Node) -> Rule:
        name = f"{self._name}-r{self._count}"
        self._count += 1
        self._rules[name] = node
        return Rule(name)


def _full(node: Node) -> Node:
    """Without the empty turn, where it is easily seen: a rule that goes on by itself must not begin
    with itself."""
    match node:
        case Choice(options) if any(
            _full(option) != option or option == EMPTY for option in options
        ):
            return choice(*(_full(option) for option in options if option != EMPTY))
        case Repeat(inner, 0, at_most):
            return repeat(_full(inner), 1, at_most)
        case _:
            return node


def _size(node: Node) -> int:
    match node:
        case Series(parts):
            return sum(map(_size, parts))
        case Choice(options):
            return sum(map(_size, options))
        case Repeat(inner):
            return 1 + _size(inner)
        case Text(text):
            return 1 + len(text) // 8
        case _:
            return 1
