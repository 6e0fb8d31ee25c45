"""Finds stop strings in text that arrives in pieces, and holds back text that may become one.

In:  pieces of text. Out: text that is safe to send; nothing after a match.
Invariant: the text that was returned never contains a part of the stop string that ends it, unless
           `include_stop` is set.
"""

from __future__ import annotations


class StopStrings:
    def __init__(self, stops: list[str], include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None

    def append(self, piece: str) -> str:
        if not self._stops:
            return piece
        text = self._held + piece
        start, stop = min(
            ((index, stop) for stop in self._stops if (index := text.find(stop)) >= 0),
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
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
