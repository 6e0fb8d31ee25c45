"""Tells which bytes of a JSON text are inside strings, slice by slice and without a loop in Python.

In:  a text in slices, in order. Out: for each slice a mask of the bytes outside of strings.
Rule: work and memory are linear in the slice, whatever the text contains.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Octets: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

_QUOTE, _BACKSLASH = 0x22, 0x5C


class StringMask:
    __slots__ = ("_is_escaped", "is_inside")

    def __init__(self) -> None:
        self.is_inside = False
        """The text read so far ends inside a string."""
        self._is_escaped = False
        """The text read so far ends with a backslash that escapes the next byte."""

    def outside(self, octets: Octets) -> Mask | None:
        """True for each byte outside of strings; a closing quotation mark counts as outside. None
        when no byte is inside."""
        quotes = octets == _QUOTE
        backslashes = octets == _BACKSLASH
        if self._is_escaped or backslashes.any():
            quotes &= ~self._escaped(backslashes)
        if not quotes.any():
            return np.zeros(len(octets), np.bool_) if self.is_inside else None
        is_inside = (np.cumsum(quotes, dtype=np.int32) + self.is_inside) & 1
        self.is_inside = bool(is_inside[-1])
        outside: Mask = is_inside == 0
        return outside

    def _escaped(self, backslashes: Mask) -> Mask:
        """A byte is escaped when an odd number of backslashes precedes it."""
        places = np.arange(len(backslashes))
        last_other = np.maximum.accumulate(np.where(backslashes, -1, places))
        runs = places - last_other
        if self._is_escaped:
            runs[last_other < 0] += 1
        escaped = np.empty(len(backslashes), np.bool_)
        escaped[0] = self._is_escaped
        escaped[1:] = runs[:-1] & 1
        self._is_escaped = bool(runs[-1] & 1)
        return escaped
