"""Reads Triton's JSON dialect character by character, to report what is wrong and where, and to
read what other parsers refuse.

In:  the text of a request body. Out: plain values, or `JsonSyntaxError` with Triton's message (it
     is RapidJSON's) and offset. The scanner is slow and runs only when the fast parser has failed.
     Strings keep bytes that are not UTF-8 as lone surrogates (`surrogateescape`); NaN, Inf and
     Infinity are numbers; the first of two equal keys counts.
Rule: the caller bounds the length and the depth of the text, because the scanner is recursive.
"""

from __future__ import annotations

import re
from typing import Any

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_DIGITS = re.compile(r"[0-9]*")
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LITERALS: dict[str, tuple[str, Any]] = {
    "n": ("null", None),
    "t": ("true", True),
    "f": ("false", False),
}


class JsonSyntaxError(Exception):
    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class JsonNumberError(JsonSyntaxError):
    """A number that no double can hold."""


class Scanner:
    def __init__(self, text: str) -> None:
        self._text = text + "\0"  # marks the end, as in a C string
        self._offset = 0

    def document(self) -> Any:
        if self._text.startswith("\ufeff"):
            self._offset = 1
        self._skip()
        if self._peek() == "\0":
            raise self._fault("The document is empty.")
        value = self._value()
        self._skip()
        if self._peek() != "\0":
            raise self._fault("The document root must not be followed by other values.")
        return value

    def _peek(self) -> str:
        return self._text[self._offset]

    def _skip(self) -> None:
        match = _WHITESPACE.match(self._text, self._offset)
        self._offset = match.end() if match else self._offset

    def _fault(self, message: str, offset: int | None = None) -> JsonSyntaxError:
        return JsonSyntaxError(message, self._offset if offset is None else offset)

    def _consume(self, word: str) -> bool:
        """Stops at the first character that differs, which is where Triton points."""
        for character in word:
            if self._peek() != character:
                return False
            self._offset += 1
        return True

    def _value(self) -> Any:
        first = self._peek()
        if first == '"':
            return self._string()
        if first == "[":
            return self._array()
        if first == "{":
            return self._object()
        if first in _LITERALS:
            word, value = _LITERALS[first]
            if not self._consume(word):
                raise self._fault("Invalid value.")
            return value
        return self._number()

    def _array(self) -> list[Any]:
        self._offset += 1
        values: list[Any] = []
        self._skip()
        if self._consume("]"):
            return values
        while True:
            values.append(self._value())
            self._skip()
            if self._consume("]"):
                return values
            if not self._consume(","):
                raise self._fault("Missing a comma or ']' after an array element.")
            self._skip()

    def _object(self) -> dict[str, Any]:
        self._offset += 1
        members: dict[str, Any] = {}
        self._skip()
        if self._consume("}"):
            return members
        while True:
            if self._peek() != '"':
                raise self._fault("Missing a name for object member.")
            name = self._string()
            self._skip()
            if not self._consume(":"):
                raise self._fault("Missing a colon after a name of object member.")
            self._skip()
            members.setdefault(name, self._value())
            self._skip()
            if self._consume("}"):
                return members
            if not self._consume(","):
                raise self._fault("Missing a comma or '}' after an object member.")
            self._skip()

    def _string(self) -> str:
        self._offset += 1
        parts: list[str] = []
        while True:
            match = _PLAIN.match(self._text, self._offset)
            assert match is not None
            parts.append(match[0])
            self._offset = match.end()
            character = self._peek()
            if character == '"':
                self._offset += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self._escape())
            elif self._offset == len(self._text) - 1:
                raise self._fault("Missing a closing quotation mark in string.")
            else:
                raise self._fault("Invalid escape character in string.")

    def _escape(self) -> str:
        start = self._offset
        kind = self._text[start + 1]
        if kind in _ESCAPES:
            self._offset += 2
            return _ESCAPES[kind]
        if kind != "u":
            raise self._fault("Invalid escape character in string.")
        code = self._hex4(start)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)
        if code <= 0xDBFF and self._text.startswith("\\u", self._offset):
            low = self._hex4(start)
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
        raise self._fault("The surrogate pair in string is invalid.", start)

    def _hex4(self, start: int) -> int:
        match = _HEX4.match(self._text, self._offset + 2)
        if match is None:
            raise self._fault("Incorrect hex digit after \\u escape in string.", start)
        self._offset = match.end()
        return int(match[0], 16)

    def _number(self) -> int | float:
        start = self._offset
        sign = -1 if self._consume("-") else 1
        if self._peek() in "IN":
            return sign * self._special()
        self._integer_part()
        is_integer = True
        if self._consume("."):
            is_integer = False
            self._require_digits("Miss fraction part in number.")
        if self._peek() in "eE":
            is_integer = False
            self._offset += 1
            if self._peek() in "+-":
                self._offset += 1
            self._require_digits("Miss exponent in number.")
        text = self._text[start : self._offset]
        value = int(text) if is_integer and len(text) <= 309 else float(text)
        if value in (float("inf"), float("-inf")):
            raise JsonNumberError("Number too big to be stored in double.", start)
        return value

    def _integer_part(self) -> None:
        if self._consume("0"):
            return
        self._require_digits("Invalid value.")

    def _require_digits(self, message: str) -> None:
        match = _DIGITS.match(self._text, self._offset)
        if match is None or not match[0]:
            raise self._fault(message)
        self._offset = match.end()

    def _special(self) -> float:
        if self._peek() == "N":
            if self._consume("NaN"):
                return float("nan")
        elif self._consume("Inf") and (self._peek() != "i" or self._consume("inity")):
            return float("inf")
        raise self._fault("Invalid value.")
