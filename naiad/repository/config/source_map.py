"""Where each field of a message is in the text: field path -> line and column.

pbtxt fills the map while it parses; validate asks it when a rule fails. Paths look like
`input[1].dims[0]` and, for map entries, `parameters["key"].string_value`. Only offsets are stored;
lines are counted when a position is needed.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right

import msgspec

MAX_SHOWN = 200
_LAST_SEGMENT = re.compile(r'(?:\.[^.\[\]"]+|\[\d+\]|\["(?:[^"\\]|\\.)*"\])$')


class Position(msgspec.Struct, frozen=True):
    """A line and a column, both counted from 1 as in editors."""

    line: int
    column: int


class SourceMap:
    def __init__(self, file_name: str = "", text: str = "") -> None:
        self.file_name = file_name
        self.offsets: dict[str, int] = {}
        self._text = text
        self._line_starts: list[int] = []

    def position_of_offset(self, offset: int) -> Position:
        if not self._line_starts:
            self._line_starts = [0, *(i + 1 for i, c in enumerate(self._text) if c == "\n")]
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def position(self, path: str) -> Position | None:
        """The position of the field or, if the text does not contain it, of the innermost field
        around it."""
        while path:
            offset = self.offsets.get(path)
            if offset is not None:
                return self.position_of_offset(offset)
            path = _around(path)
        return None

    def line(self, position: Position | None) -> str:
        """The text of that line. Bytes that are not UTF-8 appear as question marks."""
        if not position:
            return ""
        self.position_of_offset(0)
        start = self._line_starts[position.line - 1]
        end = self._text.find("\n", start)
        text = self._text[start : end if end >= 0 else len(self._text)]
        return text.rstrip()[:MAX_SHOWN].encode("utf-8", "replace").decode()

    def __contains__(self, path: str) -> bool:
        return path in self.offsets


def _around(path: str) -> str:
    """`a.b[1]` -> `a.b` -> `a` -> ``."""
    last = _LAST_SEGMENT.search(path)
    return path[: last.start()] if last else ""


def entry_path(path: str, key: object) -> str:
    """The path of a map's entry. Keys may contain any character, so they are JSON strings."""
    return f"{path}[{json.dumps(str(key))}]"
