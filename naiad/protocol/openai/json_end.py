"""Finds the end of a JSON value in a text that comes in pieces, by counting brackets outside of
strings."""

from __future__ import annotations


class JsonEnd:
    """The search for the end of one object, array or string."""

    def __init__(self, depth: int = 0) -> None:
        """`depth` is the number of brackets that are open already."""
        self._depth = depth
        self._is_string = False
        self._is_escaped = False

    def find(self, text: str) -> int:
        """The index after the value's last character; -1 when the value goes on."""
        for at, character in enumerate(text):
            if self._is_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._is_string = False
                    if self._depth == 0:
                        return at + 1
            elif character == '"':
                self._is_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return -1
