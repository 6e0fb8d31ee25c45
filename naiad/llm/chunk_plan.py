"""How the KV of one-token rows is cut into chunks, so that the attention kernel's programs are many and alike.

In:  the rows' lengths. Out: tokens per chunk, the same for all rows, each row's first chunk, and each chunk's row.
Rule: the number of chunks never exceeds num_rows + budget, so a captured graph's grid holds them at any length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

PROGRAMS_PER_SM = 16
CHUNK_GRAIN = 64
MIN_CHUNK = 128


class ChunkPlanner:
    def __init__(self, num_sms: int, num_kv_heads: int) -> None:
        self.budget = max(1, num_sms * PROGRAMS_PER_SM // num_kv_heads)

    def num_slots(self, num_rows: int) -> int:
        return num_rows + self.budget

    def plan(self, lengths: NDArray[np.int32], starts: NDArray[np.int32], items: NDArray[np.int32]) -> int:
        """Fills `starts` (one longer than `lengths`) and `items` (each chunk's row, -1 beyond the last chunk); returns the chunk size."""
        chunk = -(-int(lengths.sum()) // self.budget)
        chunk = max(MIN_CHUNK, -(-chunk // CHUNK_GRAIN) * CHUNK_GRAIN)
        counts = -(-lengths // chunk)
        starts[0] = 0
        np.cumsum(counts, out=starts[1:])
        total = int(starts[-1])
        items[:total] = np.repeat(np.arange(lengths.shape[0], dtype=np.int32), counts)
        items[total:] = -1
        return chunk
