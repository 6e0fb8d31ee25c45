"""How the KV of one-token rows is cut into chunks, so that the attention kernel's programs are
enough and alike.

In:  the rows' slots and lengths. Out: one record per chunk, all that a program must know in one
     place.
Rule: the number of chunks never exceeds num_rows + budget, so a captured graph's grid holds them at
      any length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RECORD_WIDTH = 8
ROW, SLOT, BEGIN, END, LENGTH, FIRST_CHUNK, NUM_CHUNKS = range(7)
"""Columns of a record: row, slot, first and last + 1 token, the row's whole length, and its chunks
among all chunks."""

PROGRAMS_PER_SM = 4
GRAIN = 64
MIN_CHUNK = 256
MIN_CHUNK_OF_FEW = 64
"""Where the rows alone keep less than a quarter of the SMs busy: a step of one or a few rows is all
latency."""


SHORT_LENGTH = 320
"""On average; measured on an H200: with small tiles 192 tokens are attended to a tenth faster, 500
a hundredth slower, 1000 three."""


def is_short(lengths: NDArray[np.int32]) -> bool:
    return int(lengths.sum()) < SHORT_LENGTH * lengths.shape[0]


class ChunkPlanner:
    def __init__(self, num_sms: int, num_kv_heads: int) -> None:
        self.num_sms = num_sms
        self.num_kv_heads = num_kv_heads
        self.budget = max(1, num_sms * PROGRAMS_PER_SM // num_kv_heads)

    def max_chunks(self, num_rows: int) -> int:
        return num_rows + self.budget

    def plan(
        self, slots: NDArray[np.int32], lengths: NDArray[np.int32], records: NDArray[np.int32]
    ) -> int:
        """Fills `records` (flat; a row of -1 beyond the last chunk) and returns the number of
        chunks."""
        num_rows = lengths.shape[0]
        chunk = self._chunk_size(num_rows, int(lengths.sum()))
        counts = -(-lengths // chunk)
        firsts = np.cumsum(counts) - counts
        total = int(counts.sum())
        table = records.reshape(-1, RECORD_WIDTH)
        table[total:, ROW] = -1
        rows = np.repeat(np.arange(num_rows), counts)
        first = firsts[rows]
        begin = (np.arange(total) - first) * chunk
        length = lengths[rows]
        table[:total, ROW] = rows
        table[:total, SLOT] = slots[rows]
        table[:total, BEGIN] = begin
        table[:total, END] = np.minimum(begin + chunk, length)
        table[:total, LENGTH] = length
        table[:total, FIRST_CHUNK] = first
        table[:total, NUM_CHUNKS] = counts[rows]
        return total

    def _chunk_size(self, num_rows: int, num_tokens: int) -> int:
        even = -(-num_tokens // self.budget)
        least = MIN_CHUNK if 4 * num_rows * self.num_kv_heads >= self.num_sms else MIN_CHUNK_OF_FEW
        return max(least, -(-even // GRAIN) * GRAIN)
