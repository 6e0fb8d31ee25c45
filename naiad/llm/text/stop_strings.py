"""Finds stop strings in text that arrives in pieces, and holds back text that may become one.

In:  pieces of text. Out: text that is safe to send; nothing after a match.
Invariant: the text that was returned never contains a part of the stop string that ends it, unless
           `include_stop` is set.
Rule: a token without a character that a stop string begins with costs next to nothing. Any other
      costs one look-up per character that may be held back, and one search per stop string. The
      completions of a request share one StopTable.
"""

from __future__ import annotations


class StopTable:
    """The stop strings of a request, and everything that they begin with."""

    def __init__(self, stops: list[str]) -> None:
        self.stops = list(dict.fromkeys(stops))
        self.beginnings = frozenset(
            stop[:size] for stop in self.stops for size in range(1, len(stop))
        )
        self.first_characters = frozenset(stop[:1] for stop in self.stops)
        self.max_held = max(map(len, self.stops), default=1) - 1


class StopStrings:
    def __init__(self, table: StopTable, include_stop: bool) -> None:
        self._table = table
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def append(self, piece: str) -> str:
        if not self._held and self._table.first_characters.isdisjoint(piece):
            return piece
        stops = self._table.stops
        text = self._held + piece
        start, stop = min(
            ((index, stop) for stop in stops if (index := text.find(stop)) >= 0),
            default=(-1, ""),
        )
        if start >= 0:
            self.matched = stop
            self._held = ""
            return text[: start + len(stop)] if self._include_stop else text[:start]
        num_held = self._longest_beginning(text)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """Returns the length of the longest end of `text` that a stop string begins with."""
        beginnings = self._table.beginnings
        for size in range(min(self._table.max_held, len(text)), 0, -1):
            if text[-size:] in beginnings:
                return size
        return 0
