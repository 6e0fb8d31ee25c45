"""Where a JSON value ends in a text that comes in pieces: brackets are counted, strings are
skipped."""

from __future__ import annotations


class JsonEnd:
    """Of one object, array or string."""

    def __init__(self, depth: int = 0) -> None:
        """`depth`: brackets that are open already."""
        self._depth = depth
        self._is_string = False
        self._is_escaped = False

    def find(self, text: str) -> int:
        """Index after the value's last character, or -1 when it goes on."""
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
