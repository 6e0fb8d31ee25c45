"""The response cache in the server's own memory: least recently used goes first, counted in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from naiad.scheduling.cache import CachedResponse, Key


class LocalCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, CachedResponse] = OrderedDict()
        self.num_bytes = 0
        self.num_evictions = 0

    def __len__(self) -> int:
        return len(self._entries)

    def look_up(self, key: Key, on_found: Callable[[CachedResponse | None], None]) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        on_found(entry)

    def insert(self, key: Key, response: CachedResponse) -> None:
        """One that is larger than the whole cache is not kept."""
        size = response.num_bytes
        if size > self._max_bytes:
            return
        old = self._entries.pop(key, None)
        if old is not None:
            self.num_bytes -= old.num_bytes
        while self.num_bytes + size > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
            self.num_evictions += 1
        self._entries[key] = response
        self.num_bytes += size

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
