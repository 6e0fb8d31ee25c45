"""Reads regular expressions (ECMA-262, as in JSON schema) into nodes of a grammar that match a
whole text.

In:  the expression, and how a set of characters is written (as itself, or inside a JSON string).
Out: a Node.
Rule: what a grammar cannot express is the request's INVALID_ARG: look-arounds, back-references,
      word boundaries, anchors in the middle. Lazy and greedy repeats match the same texts. Anchors
      are implied at both ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from naiad.errors import NaiadError, invalid_arg
from naiad.llm.grammar.character_set import Ranges, of, others, united
from naiad.llm.grammar.rules import Characters, Node, choice, repeat, series

Write = Callable[[Ranges], Node]
DIGITS: Ranges = ((0x30, 0x39),)
WORD = united(DIGITS, [(0x41, 0x5A), (0x61, 0x7A)], of("_"))
SPACE = united(
    of(" \t\n\v\f\r\u00a0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), [(0x2000, 0x200A)]
)
_CLASSES = {
    "d": DIGITS,
    "w": WORD,
    "s": SPACE,
    "D": others(DIGITS),
    "W": others(WORD),
    "S": others(SPACE),
}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_NEWLINES = of("\n\r\u2028\u2029")
_COUNT = re.compile(r"\{(\d+)(,(\d*))?\}")
MAX_DEPTH = 100


def read_expression(expression: str, write: Write = Characters) -> Node:
    """Raises NaiadError."""
    reader = _Reader(expression, write)
    node = reader.choice(is_start=True, is_end=True, depth=0)
    if reader.position < len(expression):
        raise reader.rejection("')' that closes nothing")
    return node


class _Reader:
    def __init__(self, expression: str, write: Write) -> None:
        self._text = expression
        self._write = write
        self.position = 0

    def rejection(self, what: str) -> NaiadError:
        return invalid_arg(
            f"the expression '{self._text[:80]}' has {what} at {self.position}, "
            f"which cannot be enforced here"
        )

    def _next(self) -> str:
        return self._text[self.position : self.position + 1]

    def _consume(self, text: str) -> bool:
        is_next = self._text.startswith(text, self.position)
        self.position += len(text) if is_next else 0
        return is_next

    def choice(self, *, is_start: bool, is_end: bool, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.rejection("too many groups inside each other")
        options = [self._series(is_start=is_start, is_end=is_end, depth=depth)]
        while self._consume("|"):
            options.append(self._series(is_start=is_start, is_end=is_end, depth=depth))
        return choice(*options)

    def _series(self, *, is_start: bool, is_end: bool, depth: int) -> Node:
        parts: list[Node] = []
        while self._next() not in ("", "|", ")"):
            if self._next() == "^":
                if not is_start or parts:
                    raise self.rejection("'^'")
                self.position += 1
            elif self._next() == "$":
                self.position += 1
                if not is_end or self._next() not in ("", "|", ")"):
                    self.position -= 1
                    raise self.rejection("'$'")
            else:
                parts.append(
                    self._repeated(is_start=is_start and not parts, is_end=is_end, depth=depth)
                )
        return series(*parts)

    def _repeated(self, *, is_start: bool, is_end: bool, depth: int) -> Node:
        begin = self.position
        node = self._atom(is_start=is_start, is_end=is_end, depth=depth)
        has_anchor = (
            re.search(r"(?<!\\)[$^]", re.sub(r"\[[^\]]*\]", "", self._text[begin : self.position]))
            is not None
        )
        count = self._count()
        if count is None:
            if (
                has_anchor
                and is_end
                and self._next() not in ("", "|", ")")
                and "$" in self._text[begin : self.position]
            ):
                raise self.rejection("'$' before")
            return node
        if has_anchor:
            raise self.rejection("a repeated anchor")
        self._consume("?")  # laziness
        if self._next() in ("+", "*", "?") or _COUNT.match(self._text, self.position):
            raise self.rejection(f"'{self._next()}'")
        return repeat(node, *count)

    def _count(self) -> tuple[int, int | None] | None:
        for sign, count in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._consume(sign):
                return count
        count_match = _COUNT.match(self._text, self.position)
        if count_match is None:
            if re.compile(r"\{,\d+\}").match(self._text, self.position):
                raise self.rejection("'{,', which some read as a repeat and others as text")
            return None
        self.position = count_match.end()
        at_least = int(count_match[1])
        if count_match[2] is None:
            return at_least, at_least
        at_most = int(count_match[3]) if count_match[3] else None
        if at_most is not None and at_most < at_least:
            raise self.rejection("a repeat whose ends are in the wrong order")
        return at_least, at_most

    def _atom(self, *, is_start: bool, is_end: bool, depth: int) -> Node:
        character = self._next()
        if character in ("*", "+", "?"):
            raise self.rejection(f"'{character}' after nothing")
        self.position += 1
        match character:
            case "(":
                return self._group(is_start=is_start, is_end=is_end, depth=depth)
            case "[":
                return self._write(self._class())
            case ".":
                return self._write(others(_NEWLINES))
            case "\\":
                return self._write(self._escape())
            case _:
                return self._write(of(character))

    def _group(self, *, is_start: bool, is_end: bool, depth: int) -> Node:
        if not self._consume("?:") and self._next() == "?":
            named = re.compile(r"\?P?<[A-Za-z_]\w*>").match(self._text, self.position)
            if named is None:
                raise self.rejection(f"'({self._text[self.position : self.position + 2]}'")
            self.position = named.end()
        node = self.choice(is_start=is_start, is_end=is_end, depth=depth + 1)
        if not self._consume(")"):
            raise self.rejection("'(' that is not closed")
        return node

    def _escape(self, *, is_in_class: bool = False) -> Ranges:
        character = self._next()
        self.position += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character == "b" and is_in_class:
            return of("\b")
        if character == "0" and not self._next().isdigit():
            return of("\0")
        if character in _CONTROLS and character != "0":
            return of(_CONTROLS[character])
        for sign, pattern in (
            ("x", r"[0-9a-fA-F]{2}"),
            ("u", r"\{[0-9a-fA-F]{1,6}\}|[0-9a-fA-F]{4}"),
        ):
            if character == sign:
                return self._code(pattern)
        if character == "" or (character.isalnum() and character.isascii()):
            self.position -= 2
            raise self.rejection(f"'\\{character}'")
        return of(character)

    def _code(self, pattern: str) -> Ranges:
        digits = re.compile(pattern).match(self._text, self.position)
        code = -1 if digits is None else int(digits[0].strip("{}"), 16)
        if digits is None or code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise self.rejection("an invalid character code")
        self.position = digits.end()
        return of(chr(code))

    def _class(self) -> Ranges:
        is_negated = self._consume("^")
        members: Ranges = ()
        while not self._consume("]"):
            low = self._member()
            if self._next() == "-" and self._text[self.position + 1 : self.position + 2] not in (
                "]",
                "",
            ):
                self.position += 1
                high = self._member()
                if (
                    len(low) != 1
                    or len(high) != 1
                    or low[0][0] != low[0][1]
                    or high[0][0] != high[0][1]
                    or high < low
                ):
                    raise self.rejection("an invalid range")
                low = ((low[0][0], high[0][0]),)
            members = united(members, low)
        result = others(members) if is_negated else members
        if not result:
            raise self.rejection("a class of no characters")
        return result

    def _member(self) -> Ranges:
        character = self._next()
        if not character:
            raise self.rejection("'[' that is not closed")
        self.position += 1
        return self._escape(is_in_class=True) if character == "\\" else of(character)
