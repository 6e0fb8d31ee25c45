"""Sizes of captured steps, and what is staged at their fixed places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")

import torch

from naiad.llm.step.chunk_plan import ROW, ChunkPlanner
from naiad.llm.step.step_stager import TOKENS_PER_TILE, StepStager, padded_size
from naiad.llm.token_scheduler import ScheduledRow, StepPlan


class FakeSequence:
    def __init__(self, slot: int, num_tokens: int) -> None:
        self.slot = slot
        self.tokens = [7] * num_tokens


def plan_of(num_single: int, prompts: list[int]) -> StepPlan:
    counts = [1] * num_single + prompts
    sequences: list[Any] = [
        FakeSequence(slot, max(count, 300)) for slot, count in enumerate(counts)
    ]
    rows = [
        ScheduledRow(sequence, 299 if at < num_single else 0, count, True)
        for at, (sequence, count) in enumerate(zip(sequences, counts, strict=True))
    ]
    return StepPlan(rows, num_single, sum(counts))


@pytest.mark.parametrize(
    ("num_single", "prompts", "size"),
    [
        (0, [64], 65),
        (0, [63], 64),
        (1, [63], 64),
        (0, [2] * 10, 10 * TOKENS_PER_TILE),
        (5, [], 5),
        (3, [200], 203),
    ],
)
def test_prompts_alone_leave_room_for_a_row_of_padding(
    num_single: int, prompts: list[int], size: int
) -> None:
    assert padded_size(plan_of(num_single, prompts)) == size


@pytest.mark.parametrize(
    ("num_single", "prompts"), [(0, [64]), (0, [16, 15]), (3, [61]), (12, []), (0, [2, 3])]
)
def test_some_program_of_either_attention_has_work_or_padding(
    num_single: int, prompts: list[int]
) -> None:
    stager = StepStager(512, 12, ChunkPlanner(4, 2), torch.device("cpu"), max_padded_tokens=512)
    plan = plan_of(num_single, prompts)
    step = stager.stage_padded(plan, padded_size(plan), {})
    assert step.chunks is not None
    chunks = step.chunks.numpy()
    assert (chunks[:, ROW] >= 0).any()
    padding = np.flatnonzero(step.slots.numpy() == 12)
    assert len(padding) == step.num_tokens - plan.num_tokens
    assert step.tiles is not None
    assert int(step.tiles[:, 2].sum()) == sum(prompts)
    assert step.sample_rows is not None
    assert step.slots[step.sample_rows.long()].tolist() == [row.sequence.slot for row in plan.rows]


def test_sections_of_a_size_always_have_the_same_addresses() -> None:
    stager = StepStager(512, 12, ChunkPlanner(4, 2), torch.device("cpu"), max_padded_tokens=512)
    places = set()
    for plan in (StepPlan(), plan_of(12, []), plan_of(0, [255]), plan_of(3, [100, 7])):
        step = stager.stage_padded(plan, 256, {})
        assert step.chunks is not None
        assert step.tiles is not None
        read = (step.token_ids, step.positions, step.slots, step.chunks, step.tiles)
        places.add(tuple((tensor.data_ptr(), tuple(tensor.shape)) for tensor in read))
    assert len(places) == 1
