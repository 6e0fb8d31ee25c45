"""Keeps special tokens out of what clients write: `<|im_end|>` in a message is text, not the end
of the message.

In:  the strings of a chat, before its template sees them. Out: the same with a mark inside each
     text of a special token; `split` cuts the rendered prompt there, and each part is tokenized by
     itself. A chat without such texts is not changed, nor are its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from naiad.errors import invalid_arg

MARKS = [chr(point) for point in range(0xFDD0, 0xFDF0)]
"""Noncharacters of Unicode: no text has them."""


class ContentGuard:
    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted((text for text in special_texts if len(text) > 1), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def marked(self, *values: Any) -> tuple[tuple[Any, ...], str]:
        """The values with marks in their strings, and the mark; `""` when there was nothing to
        mark. Raises NaiadError."""
        if self._pattern is None or not any(map(self._has_special, values)):
            return values, ""
        mark = next((one for one in MARKS if not any(_holds(value, one) for value in values)), "")
        if not mark:
            raise invalid_arg("the messages hold every noncharacter of Unicode")
        return tuple(self._replaced(value, mark) for value in values), mark

    def _has_special(self, value: Any) -> bool:
        assert self._pattern is not None
        pattern = self._pattern
        return any(pattern.search(text) is not None for text in _strings(value))

    def _replaced(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(lambda found: self._cut(found[0], mark), value)
        if isinstance(value, dict):
            return {
                self._replaced(name, mark): self._replaced(inner, mark)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self._replaced(inner, mark) for inner in value]
        return value

    def _cut(self, text: str, mark: str) -> str:
        assert self._pattern is not None
        rest = text[1:]
        if self._pattern.search(rest):
            return mark.join(text) + mark
        return text[0] + mark + rest + mark


def split(text: str, mark: str) -> list[str]:
    return [part for part in text.split(mark) if part] if mark else [text]


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _holds(value: Any, mark: str) -> bool:
    return any(mark in text for text in _strings(value))
