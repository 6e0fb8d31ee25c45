"""Tests of the groups of one-token rows: every row is in one group, none is padded too far, and the
tokens do not depend on the groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

import torch

from naiad.llm.models import step_layout
from naiad.llm.models.step_layout import ALWAYS_PADDED, MAX_PADDING, StepLayout
from naiad.llm.step.kv_cache import KvCache
from naiad.llm.step.step_input import StepInput
from tests.unit.llm import checkpoints
from tests.unit.llm.engines import request, run, small_engine


def lay_out(positions: list[int]) -> StepLayout:
    count = len(positions)
    pages = [torch.zeros((4, 1, 16, 8))]
    step = StepInput(
        torch.zeros(count, dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int32),
        torch.arange(count),
        count,
    )
    return StepLayout(
        step, KvCache(pages, pages, torch.zeros((count + 1, 64), dtype=torch.int32), 16)
    )


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_each_row_is_in_one_group_and_not_padded_too_far(positions: list[int]) -> None:
    groups = lay_out(positions).groups
    rows = [
        row
        for group in groups
        for row in (range(len(positions)) if group.rows is None else group.rows.tolist())
    ]
    assert sorted(rows) == list(range(len(positions)))
    for group in groups:
        lengths = (group.positions + 1).tolist()
        assert (group.shortest, group.longest) == (min(lengths), max(lengths))
        assert group.longest <= max(MAX_PADDING * group.shortest, ALWAYS_PADDED)


def test_rows_of_one_group_stay_in_their_order() -> None:
    (group,) = lay_out([7, 3, 90]).groups
    assert group.rows is None
    assert group.positions.tolist() == [7, 3, 90]


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2-window", "gemma2"])
def test_groups_do_not_change_tokens(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_layout, "ALWAYS_PADDED", 1)
    model = checkpoints.save_checkpoint(family, tmp_path)
    prompts = [
        [(7 * at + length) % checkpoints.VOCAB for at in range(length)]
        for length in (60, 2, 7, 31, 1)
    ]
    engine = small_engine(tmp_path, num_kv_blocks=80, max_num_batched_tokens=128)
    completions = run(
        engine, [request(str(i), prompt, max_tokens=16) for i, prompt in enumerate(prompts)]
    )
    for index, prompt in enumerate(prompts):
        checkpoints.check_greedy(model, prompt, completions[(str(index), 0)].tokens)
