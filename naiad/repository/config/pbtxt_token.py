"""Splits protobuf text into the same tokens as protobuf's own C++ tokenizer.

In:  the text of a config.pbtxt. Out: tokens with their offsets, one at a time, then END.
Rule: anything else is a syntax error. Common mistakes (`=`, curly quotes, `//`) get a suggested
      fix.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

import msgspec


class Kind(enum.Enum):
    NAME = "a name"
    INTEGER = "an integer"
    FLOAT = "a number"
    STRING = "a string"
    SYMBOL = "a symbol"
    END = "the end of the file"


class Token(msgspec.Struct, frozen=True):
    kind: Kind
    text: str
    """The token as written: a string includes its quotes and escapes."""
    offset: int

    def __str__(self) -> str:
        return (
            Kind.END.value
            if self.kind is Kind.END
            else self.text
            if self.kind is Kind.STRING
            else f"'{self.text}'"
        )


class TextSyntaxError(Exception):
    """The text cannot be parsed beyond `offset`."""

    def __init__(
        self,
        code: str,
        message: str,
        offset: int,
        *,
        found: str = "",
        expected: str = "",
        fix: str = "",
        protobuf: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset
        self.found = found
        self.expected = expected
        self.fix = fix
        self.protobuf = protobuf


# Possessive quantifiers: without them, a long string or comment would use memory for backtracking.
_SKIPPED = re.compile(r"(?:[ \t\r\n\f\v]++|#[^\n]*+)*+")
_TOKEN = re.compile(
    r"""(?P<NAME>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<FLOAT>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?
          | \d+[eE][+-]?\d+[fF]? | (?!0\d|0[xX])\d+[fF])
      | (?P<INTEGER>0[xX][0-9a-fA-F]+|\d+)
      | (?P<STRING>"(?:[^"\\\n]++|\\[^\n])*+"|'(?:[^'\\\n]++|\\[^\n])*+')
      | (?P<SYMBOL>[][{}<>:,;-])""",
    re.VERBOSE,
)
_GLUED = re.compile(r"[A-Za-z0-9_.]+")


def tokens(text: str) -> Iterator[Token]:
    """As in protobuf, a byte order mark is skipped."""
    offset = 1 if text.startswith("\ufeff") else 0
    while True:
        skipped = _SKIPPED.match(text, offset)
        offset = skipped.end() if skipped else offset
        if offset == len(text):
            break
        found = _TOKEN.match(text, offset)
        if not found:
            raise _no_token(text, offset)
        kind = Kind[found.lastgroup or "SYMBOL"]
        end = found.end()
        if kind in (Kind.INTEGER, Kind.FLOAT) and (glued := _GLUED.match(text, end)):
            raise TextSyntaxError(
                "bad-number",
                f"'{text[offset : glued.end()]}' is neither a number nor a name",
                offset,
                found=text[offset : glued.end()],
                expected="a number, or a space between a number and a name",
            )
        yield Token(kind, found.group(), offset)
        offset = end
    yield Token(Kind.END, "", offset)


def _no_token(text: str, offset: int) -> TextSyntaxError:
    char = text[offset]
    line = text[offset:].split("\n", 1)[0]
    if char in "\"'":
        return TextSyntaxError(
            "unterminated-string",
            "a string is not closed on its line",
            offset,
            found=line[:60],
            expected=f"a closing {char} on the same line",
            fix="close the string; a second quoted string on the next line continues it",
        )
    fix = ""
    if char == "=":
        fix = "write ':' between a field's name and its value"
    elif line.startswith(("//", "/*")):
        fix = "comments start with '#'"
    elif char in "\u201c\u201d\u2018\u2019\u00ab\u00bb":
        fix = "replace typographic quotes by \" or '"
    elif char == "$":
        fix = "this looks like a template: fill in its ${variables} first"
    elif char.isspace():
        fix = "replace this special space by an ordinary one"
    elif char == "+":
        fix = "remove the '+'"
    name = repr(char) if char.isprintable() else f"U+{ord(char):04X}"
    return TextSyntaxError(
        "bad-character",
        f"unexpected character {name}",
        offset,
        found=line[:60],
        expected="a field name or a value",
        fix=fix,
    )
