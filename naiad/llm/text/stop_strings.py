"""Finds stop strings in text that arrives in pieces, and holds back what may yet become one.

In:  pieces of text. Out: text that is safe to show; after a match, nothing more.
Invariant: shown text never holds any part of a stop string that ends it, unless `include_stop` was
           asked for.
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
            ((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=(-1, "")
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
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
