"""Reads a user's own grammar, in the notation of GBNF and xgrammar, into rules.

Rule: the grammar is parsed completely here and written again by `render`, so an engine never gets
      text that a client wrote. Look-aheads, tags and macros of particular libraries are rejected.
"""

from __future__ import annotations

import re

from naiad.errors import NaiadError, invalid_arg
from naiad.llm.grammar.character_set import Ranges, others, united
from naiad.llm.grammar.rules import Characters, Node, Repeat, Rule, Rules, choice, series

MAX_DEPTH = 100
_TOKEN = re.compile(
    r"""(?P<space>(?:[ \t\r\n]|\#[^\n]*)+)|(?P<define>::=)|(?P<text>"(?:\\.|[^"\\\n])*")"""
    r"""|(?P<class>\[(?:\\.|[^\]\\\n])*\])"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\}|[*+?])|(?P<sign>[()|])""",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "b": "\b", "a": "\a"}


def read_grammar(text: str) -> Rules:
    """Raises NaiadError."""
    return _Reader(text).rules()


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _rejection(text, at, f"'{text[at : at + 10]}'")
            if found.lastgroup != "space":
                self._tokens.append((str(found.lastgroup), found[0], at))
            at = found.end()
        self._text = text
        self._index = 0

    def _peek(self, ahead: int = 0) -> tuple[str, str, int]:
        at = self._index + ahead
        return self._tokens[at] if at < len(self._tokens) else ("end", "", len(self._text))

    def _unexpected(self) -> NaiadError:
        kind, word, at = self._peek()
        return _rejection(self._text, at, "its end" if kind == "end" else f"'{word[:40]}'")

    def rules(self) -> Rules:
        found: Rules = {}
        while self._peek()[0] != "end":
            kind, name, _ = self._peek()
            if kind != "name" or self._peek(1)[0] != "define":
                raise self._unexpected()
            if name in found:
                raise invalid_arg(f"the grammar has two rules '{name}'")
            self._index += 2
            found[name] = self._choice(0)
        return found

    def _choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise invalid_arg("the grammar has too many groups inside each other")
        options = [self._series(depth)]
        while self._peek()[1] == "|":
            self._index += 1
            options.append(self._series(depth))
        return choice(*options)

    def _series(self, depth: int) -> Node:
        parts: list[Node] = []
        while True:
            kind, word, _ = self._peek()
            if (
                kind == "end"
                or word in ("|", ")")
                or (kind == "name" and self._peek(1)[0] == "define")
            ):
                return series(*parts)
            parts.append(self._repeated(depth))

    def _repeated(self, depth: int) -> Node:
        node = self._atom(depth)
        while self._peek()[0] == "count":
            node = self._counted(node, self._peek()[1])
            self._index += 1
        return node

    def _counted(self, node: Node, word: str) -> Node:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if word in simple:
            return Repeat(node, *simple[word])
        low, comma, high = word.strip("{}").replace(" ", "").partition(",")
        at_least = int(low)
        at_most = (int(high) if high.strip() else None) if comma else at_least
        if at_most is not None and (at_most < at_least or at_most == 0):
            raise self._unexpected()
        return Repeat(node, at_least, at_most)

    def _atom(self, depth: int) -> Node:
        kind, word, at = self._peek()
        match kind:
            case "text":
                self._index += 1
                return series("".join(chr(code) for code, _ in _codes(word[1:-1], self._text, at)))
            case "class":
                self._index += 1
                return Characters(_class(word[1:-1], self._text, at))
            case "name":
                self._index += 1
                if self._peek()[1] == "(" and self._peek()[2] == at + len(word):
                    raise self._unexpected()  # a macro
                return Rule(word)
        if word != "(":
            raise self._unexpected()
        self._index += 1
        node = self._choice(depth + 1)
        if self._peek()[1] != ")":
            raise self._unexpected()
        self._index += 1
        return node


def _class(word: str, text: str, at: int) -> Ranges:
    is_negated = word.startswith("^")
    codes = _codes(word[is_negated:], text, at)
    found: list[tuple[int, int]] = []
    place = 0
    while place < len(codes):
        code, _ = codes[place]
        is_range = place + 2 < len(codes) and codes[place + 1] == (0x2D, False)
        last = codes[place + 2][0] if is_range else code
        if last < code:
            raise _rejection(text, at, f"'[{word[:40]}]', a range in the wrong order")
        found.append((code, last))
        place += 3 if is_range else 1
    ranges = others(united(found)) if is_negated else united(found)
    if not ranges:
        raise _rejection(text, at, "a class of no characters")
    return ranges


def _codes(word: str, text: str, at: int) -> list[tuple[int, bool]]:
    """Returns code points, and whether each was written with a backslash."""
    found: list[tuple[int, bool]] = []
    for part in _ESCAPE.finditer(word):
        digits = part[1] or part[2] or part[3]
        code = (
            int(digits, 16)
            if digits
            else ord(_CONTROLS.get(part[4], part[4]) if part[4] else part[5])
        )
        is_letter = part[4] is not None and part[4] not in _CONTROLS and part[4].isalnum()
        if is_letter or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise _rejection(text, at, f"'{part[0]}'")
        found.append((code, part[0] != part[5]))
    return found


def _rejection(text: str, at: int, what: str) -> NaiadError:
    line = text.count("\n", 0, at) + 1
    return invalid_arg(f"the grammar has {what} in line {line}, which cannot be used")
