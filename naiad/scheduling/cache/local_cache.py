"""The response cache in the server's own memory. Its size is limited in bytes, and the least
recently used responses are evicted first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from naiad import log
from naiad.metrics.cache_metrics import CacheReading
from naiad.scheduling.cache.cache import CachedResponse, Key


class LocalCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._has_warned = False
        self._entries: OrderedDict[Key, CachedResponse] = OrderedDict()
        self.num_bytes = 0
        self.counts = CacheReading()

    def __len__(self) -> int:
        return len(self._entries)

    def read(self) -> CacheReading:
        """What the metrics page shows."""
        return msgspec.structs.replace(
            self.counts, num_entries=len(self), utilization=self.num_bytes / self._max_bytes
        )

    def look_up(self, key: Key, on_lookup: Callable[[CachedResponse | None], None]) -> None:
        start_ns = time.monotonic_ns()
        counts, entry = self.counts, self._entries.get(key)
        counts.num_lookups += 1
        if entry is not None:
            self._entries.move_to_end(key)
            counts.num_hits += 1
        counts.lookup_ns += time.monotonic_ns() - start_ns
        on_lookup(entry)

    def insert(self, key: Key, response: CachedResponse) -> None:
        """A response that is larger than the whole cache is not kept."""
        start_ns = time.monotonic_ns()
        size = response.num_bytes
        if size > self._max_bytes:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    f"a response of {size} bytes is larger than the whole cache of "
                    f"{self._max_bytes} bytes: such responses are not kept"
                )
            return
        old = self._entries.pop(key, None)
        if old is not None:
            self.num_bytes -= old.num_bytes
        while self.num_bytes + size > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
            self.counts.num_evictions += 1
        self._entries[key] = response
        self.num_bytes += size
        self.counts.insertion_ns += time.monotonic_ns() - start_ns

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self._entries.clear()
        self.num_bytes = 0
