"""Recognises keys that come again, without keeping them.

A cache asks before it adds an entry that costs more to keep than to make once: clients that never
repeat themselves then leave nothing in it.
"""

from __future__ import annotations

from collections.abc import Hashable

MAX_KEYS = 1024


class SeenKeys:
    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, key: Hashable) -> bool:
        """Returns True if the key, or rarely another one with its hash, was added before. A full
        set starts again."""
        number = hash(key)
        if number in self._hashes:
            return True
        if len(self._hashes) >= MAX_KEYS:
            self._hashes.clear()
        self._hashes.add(number)
        return False
