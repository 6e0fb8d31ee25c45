"""Chunks cover every row once, in order, and never outgrow a graph's grid."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.llm.step.chunk_plan import (
    BEGIN,
    END,
    FIRST_CHUNK,
    LENGTH,
    NUM_CHUNKS,
    RECORD_WIDTH,
    ROW,
    SLOT,
    ChunkPlanner,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 200_000), min_size=1, max_size=40),
    st.sampled_from([1, 2, 8, 71]),
    st.sampled_from([1, 132]),
)
def test_every_token_is_in_one_chunk(lengths: list[int], num_kv_heads: int, num_sms: int) -> None:
    planner = ChunkPlanner(num_sms, num_kv_heads)
    records = np.full(planner.max_chunks(len(lengths)) * RECORD_WIDTH, 77, np.int32)
    slots = np.arange(len(lengths), dtype=np.int32) + 100
    count = planner.plan(slots, np.array(lengths, np.int32), records)
    table = records.reshape(-1, RECORD_WIDTH)
    assert count <= len(table)
    assert (table[count:, ROW] == -1).all()
    for row, length in enumerate(lengths):
        own = table[:count][table[:count, ROW] == row]
        assert own[0, BEGIN] == 0
        assert own[-1, END] == length
        assert (own[1:, BEGIN] == own[:-1, END]).all()
        assert (own[:, BEGIN] < own[:, END]).all()
        assert (own[:, SLOT] == row + 100).all()
        assert (own[:, LENGTH] == length).all()
        assert (own[:, NUM_CHUNKS] == len(own)).all()
        assert (table[own[0, FIRST_CHUNK] : own[0, FIRST_CHUNK] + len(own)] == own).all()
