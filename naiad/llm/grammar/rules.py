"""A context-free grammar over characters: rules by name, of which `root` is the whole response.

In:  rules from the readers of schemas, expressions and users' own grammars. Out: the grammar's
     text, in the dialect of xgrammar.
Rule: `render` writes only what every version of xgrammar reads, and `check` rejects every grammar
      that its matcher could not end. One request's grammar must never harm the engine, which serves
      all requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from naiad.errors import invalid_arg

MAX_GRAMMAR_BYTES = 256 << 10
MAX_REPEATS = 4096
"""Maximum sum of all repeat counts of a grammar."""
MAX_PLACES = 4096
"""Maximum number of places that allow many characters. The grammar library tests every token at
each of them: some 25 ms for a vocabulary of 128,000."""
WIDE = 16
"""A place that allows more characters than this counts."""
ROOT = "root"


class Text(msgspec.Struct, frozen=True):
    text: str


class Characters(msgspec.Struct, frozen=True):
    """One character from these ranges of code points, both ends included."""

    ranges: tuple[tuple[int, int], ...]


class Series(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Choice(msgspec.Struct, frozen=True):
    options: tuple[Node, ...]


class Repeat(msgspec.Struct, frozen=True):
    node: Node
    at_least: int
    at_most: int | None


class Rule(msgspec.Struct, frozen=True):
    name: str


Node: TypeAlias = Text | Characters | Series | Choice | Repeat | Rule
Rules: TypeAlias = dict[str, Node]
EMPTY = Text("")


def series(*parts: Node | str) -> Node:
    nodes = tuple(
        node
        for node in (Text(part) if isinstance(part, str) else part for part in parts)
        if node != EMPTY
    )
    return nodes[0] if len(nodes) == 1 else Series(nodes) if nodes else EMPTY


def choice(*options: Node | str) -> Node:
    """Equal options are written once."""
    nodes = tuple(
        dict.fromkeys(Text(option) if isinstance(option, str) else option for option in options)
    )
    return nodes[0] if len(nodes) == 1 else Choice(nodes)


def repeat(node: Node, at_least: int, at_most: int | None) -> Node:
    if at_most == 0 or node == EMPTY:
        return EMPTY
    return node if (at_least, at_most) == (1, 1) else Repeat(node, at_least, at_most)


def optional(node: Node) -> Node:
    return repeat(node, 0, 1)


def check(rules: Rules) -> None:
    """Raises NaiadError for names without a rule, too many repeats, rules that begin with
    themselves, and a grammar that cannot end."""
    total = 0
    for name, node in rules.items():
        for part in walk(node):
            if isinstance(part, Rule) and part.name not in rules:
                raise invalid_arg(
                    f"the grammar has no rule '{part.name}', which rule '{name}' names"
                )
            if isinstance(part, Repeat):
                total += max(part.at_least, part.at_most or 0)
    if total > MAX_REPEATS:
        raise invalid_arg(
            f"the grammar repeats things {total} times, expected at most {MAX_REPEATS}"
        )
    if ROOT not in rules:
        raise invalid_arg(f"the grammar has no rule '{ROOT}'")
    empty = _least(rules, _can_be_empty)
    _reject_left_recursion(rules, empty)
    if ROOT not in _least(rules, _can_end):
        raise invalid_arg("no response fits the grammar: it has no end")


def walk(node: Node) -> list[Node]:
    """Returns the node and all nodes below it."""
    nodes = [node]
    for current in nodes:
        match current:
            case Series(parts):
                nodes.extend(parts)
            case Choice(options):
                nodes.extend(options)
            case Repeat(inner):
                nodes.append(inner)
            case _:
                pass
    return nodes


def _least(rules: Rules, holds: Holds) -> set[str]:
    """Returns the smallest set of rules that have the property: those for which it follows from
    other rules in the set."""
    known: set[str] = set()
    has_grown = True
    while has_grown:
        gained = {name for name, node in rules.items() if name not in known and holds(node, known)}
        has_grown = bool(gained)
        known |= gained
    return known


class Holds(msgspec.Struct, frozen=True):
    """A property of nodes that follows from the property of their parts."""

    of_text: bool
    """True if non-empty texts and characters have the property."""

    def __call__(self, node: Node, known: set[str]) -> bool:
        match node:
            case Text(text):
                return self.of_text or not text
            case Characters(ranges):
                return self.of_text and bool(ranges)
            case Series(parts):
                return all(self(part, known) for part in parts)
            case Choice(options):
                return any(self(option, known) for option in options)
            case Repeat(inner, at_least):
                return at_least == 0 or self(inner, known)
            case Rule(name):
                return name in known


_can_be_empty = Holds(of_text=False)
_can_end = Holds(of_text=True)


def _reject_left_recursion(rules: Rules, empty: set[str]) -> None:
    """Rejects rules that a matcher would follow without ever reading a character."""
    first = {name: _first(node, empty) for name, node in rules.items()}
    for name in rules:
        reached: set[str] = set()
        ahead = [name]
        while ahead:
            gained = first[ahead.pop()] - reached
            reached |= gained
            ahead.extend(gained)
        if name in reached:
            raise invalid_arg(f"rule '{name}' of the grammar begins with itself")


def _first(node: Node, empty: set[str]) -> set[str]:
    """Returns the rules that the node can begin with."""
    match node:
        case Rule(name):
            return {name}
        case Choice(options):
            return set().union(*(_first(option, empty) for option in options))
        case Repeat(inner):
            return _first(inner, empty)
        case Series(parts):
            names: set[str] = set()
            for part in parts:
                names |= _first(part, empty)
                if not _can_be_empty(part, empty):
                    break
            return names
        case _:
            return set()


def num_places(rules: Rules, max_of_repeat: int = MAX_REPEATS) -> int:
    """Returns the number of places that allow many characters, counting repeats. Equal repeats are
    compiled once; `max_of_repeat` is the most that a library compiles for one."""
    repeats: set[Node] = set()
    total = 0
    for node in rules.values():
        for part in walk(node):
            if _is_wide(part):
                total += 1
            elif isinstance(part, Repeat) and _is_wide(part.node) and part not in repeats:
                repeats.add(part)
                total += min(max(part.at_least, part.at_most or 1), max_of_repeat) - 1
    return total


def _is_wide(node: Node) -> bool:
    return isinstance(node, Characters) and sum(high - low + 1 for low, high in node.ranges) > WIDE


def render(rules: Rules, max_places: int = MAX_PLACES, max_of_repeat: int = MAX_REPEATS) -> str:
    """Returns the grammar's text. The limits are those of `num_places`. Raises NaiadError for a
    grammar that is too large or that `check` rejects."""
    check(rules)
    places = num_places(rules, max_of_repeat)
    if places > max_places:
        raise invalid_arg(
            f"the grammar has {places} places for many characters, counting repeats; "
            f"this model accepts {max_places}"
        )
    text = "".join(f"{name} ::= {_expression(node)}\n" for name, node in rules.items())
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise invalid_arg(
            f"the grammar takes {len(text.encode())} bytes, expected at most {MAX_GRAMMAR_BYTES}"
        )
    return text


def _expression(node: Node) -> str:
    match node:
        case Text(text):
            return f'"{"".join(map(_in_text, text))}"'
        case Characters(ranges):
            return f"[{''.join(_range(*block) for each in ranges for block in utf8_blocks(*each))}]"
        case Series(parts):
            return " ".join(
                _atom(part) if isinstance(part, Choice) else _expression(part) for part in parts
            )
        case Choice(options):
            return " | ".join(_expression(option) for option in options)
        case Repeat(inner, at_least, at_most):
            return _atom(inner) + _count(at_least, at_most)
        case Rule(name):
            return name


def _atom(node: Node) -> str:
    is_atom = isinstance(node, Text | Characters | Rule)
    return _expression(node) if is_atom else f"({_expression(node)})"


def _count(at_least: int, at_most: int | None) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((at_least, at_most))
    return known or f"{{{at_least},{'' if at_most is None else at_most}}}"


def utf8_blocks(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Splits the range into parts in which every byte of a character's UTF-8 has a range that does
    not depend on the other bytes.

    OpenVINO's version of the library assumes this of all ranges; for others it allows bytes that
    are not UTF-8.
    """
    for last in (0x7F, 0x7FF, 0xFFFF):
        if low <= last < high:
            yield from utf8_blocks(low, last)
            yield from utf8_blocks(last + 1, high)
            return
    for num_bytes in range(
        1, 0 if high < 0x80 else 2 if high < 0x800 else 3 if high < 0x10000 else 4
    ):
        rest = (1 << (6 * num_bytes)) - 1
        if low & ~rest == high & ~rest:
            break
        if low & rest:
            yield from utf8_blocks(low, low | rest)
            yield from utf8_blocks((low | rest) + 1, high)
            return
        if high & rest != rest:
            yield from utf8_blocks(low, (high & ~rest) - 1)
            yield from utf8_blocks(high & ~rest, high)
            return
    yield low, high


def _range(low: int, high: int) -> str:
    return _in_class(low) if low == high else f"{_in_class(low)}-{_in_class(high)}"


def _in_class(code: int) -> str:
    return f"\\{chr(code)}" if chr(code) in "\\]-^" else _plain(code)


def _in_text(character: str) -> str:
    return f"\\{character}" if character in '"\\' else _plain(ord(character))


def _plain(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x20 or code == 0x7F else chr(code)
