"""The metrics of the response cache in the server's own memory."""

from __future__ import annotations

import msgspec

from naiad.metrics.exposition import GAUGE, Block


class CacheReading(msgspec.Struct):
    num_entries: int = 0
    num_lookups: int = 0
    num_hits: int = 0
    num_evictions: int = 0
    lookup_ns: int = 0
    insertion_ns: int = 0
    utilization: float = 0.0


def cache_blocks(reading: CacheReading | None) -> list[Block]:
    """Returns the blocks of the cache. They are empty, and so not shown, without such a cache.

    As in Triton, all of them are gauges, although most only grow.
    """
    rows = [
        ("nv_cache_num_entries", "Number of responses stored in response cache", "num_entries"),
        ("nv_cache_num_lookups", "Number of cache lookups in response cache", "num_lookups"),
        ("nv_cache_num_hits", "Number of cache hits in response cache", "num_hits"),
        ("nv_cache_num_misses", "Number of cache misses in response cache", "num_misses"),
        ("nv_cache_num_evictions", "Number of cache evictions in response cache", "num_evictions"),
        (
            "nv_cache_lookup_duration",
            "Total cache lookup duration (hit and miss), in microseconds",
            "lookup_us",
        ),
        (
            "nv_cache_insertion_duration",
            "Total cache insertion duration, in microseconds",
            "insertion_us",
        ),
        ("nv_cache_util", "Cache utilization [0.0 - 1.0]", "utilization"),
    ]
    values: dict[str, float] = {}
    if reading is not None:
        values = msgspec.structs.asdict(reading)
        values["num_misses"] = reading.num_lookups - reading.num_hits
        values |= {
            "lookup_us": reading.lookup_ns // 1000,
            "insertion_us": reading.insertion_ns // 1000,
        }
    blocks: list[Block] = []
    for name, help, field in rows:
        block = Block(name, GAUGE, help)
        if field in values:
            block.add("", values[field])
        blocks.append(block)
    return blocks
