"""The text of one completion: a detokenizer, then stop strings. It exists only if the request asks
for text."""

from __future__ import annotations

from naiad.llm.text.detokenizer import Detokenizer
from naiad.llm.text.stop_strings import StopStrings


class CompletionText:
    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer = detokenizer
        self._stops = stops

    def append(self, token: int, is_stop_allowed: bool) -> str:
        piece = self._detokenizer.append(token)
        if not is_stop_allowed:
            return self._stops.finish() + piece
        return self._stops.append(piece)

    @property
    def matched_stop(self) -> str | None:
        return self._stops.matched

    def finish(self) -> str:
        """Returns the rest of the text if the completion ends for another reason than a stop
        string. The rest may itself contain a stop string."""
        text = self._stops.append(self._detokenizer.finish())
        return text if self._stops.matched is not None else text + self._stops.finish()
