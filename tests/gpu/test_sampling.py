"""The CUDA sampler compared with the PyTorch sampler: the same adjusted argmax, the same remaining
tokens, and the same distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch

from naiad.llm.generation import GenerationRequest
from naiad.llm.kernels.sampling import TritonSampler
from naiad.llm.parameters import SamplingParameters
from naiad.llm.sequence import Sequence
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.torch_sampler import TorchSampler, draw

VOCAB = 5000


def fill_slot(
    table: SlotTable,
    slot: int,
    seed: int = 0,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    **values: Any,
) -> Sequence:
    request = GenerationRequest(id=str(slot), prompt=[], parameters=SamplingParameters(**values))
    sequence = Sequence(request, 0, prompt or [1], 10_000, seed, 0)
    sequence.tokens += output or []
    sequence.slot = slot
    sequence.stop_token_ids = frozenset(request.parameters.stop_token_ids)
    table.rows[slot] = torch.from_numpy(table.pack(sequence)).to(table.device)
    return sequence


def as_int32(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def test_greedy_sampling_agrees_with_every_adjustment(
    device: torch.device, narrow: torch.dtype
) -> None:
    torch.manual_seed(0)
    table, other = SlotTable(6, VOCAB, device), SlotTable(6, VOCAB, torch.device("cpu"))
    logits = torch.randn((6, VOCAB), device=device).mul(4).to(narrow)
    top = logits.float().topk(8, dim=-1).indices.tolist()
    cases: list[dict[str, Any]] = [
        {},
        {"repetition_penalty": 1.7, "prompt": top[1][:3], "output": top[1][3:5]},
        {"presence_penalty": 1.5, "frequency_penalty": 0.7, "output": top[2][:3] + top[2][:1] * 4},
        {"logit_bias": {top[3][0]: -100.0, top[3][1]: float("-inf"), 17: 2.0}},
        {"min_tokens": 5, "stop_token_ids": top[4][:2]},
        {"repetition_penalty": 0.8, "output": top[5][2:4], "logit_bias": {top[5][0]: -50.0}},
    ]
    for slot, case in enumerate(cases):
        for one in (table, other):
            fill_slot(one, slot, temperature=0.0, **case)
    mask = torch.full((table.masks.shape[1],), -1, dtype=torch.int32)
    mask[top[0][0] // 32] &= ~(1 << (top[0][0] % 32)) if top[0][0] % 32 != 31 else 0x7FFFFFFF
    for one in (table, other):
        one.rows[0, 0] = 8
        one.masks[0] = mask.to(one.device)
    slots, positions, mask_rows = list(range(6)), [3] * 6, [0, -1, -1, -1, -1, -1]
    for _ in range(3):  # The counts are kept from step to step.
        got = TritonSampler(table).sample(
            logits, *(as_int32(v, device) for v in (slots, positions, mask_rows))
        )
        want = TorchSampler(other).sample(
            logits.cpu(), *(as_int32(v, torch.device("cpu")) for v in (slots, positions, mask_rows))
        )
        assert got.tolist() == want.tolist()
        assert table.next_tokens[:6].tolist() == want.tolist()
        assert torch.equal(table.counts.cpu(), other.counts)
    assert got[0] != top[0][0]
    assert got[4] not in top[4][:2]


def kept_tokens(logits: torch.Tensor, **values: Any) -> set[int]:
    """Finds the remaining tokens by sorting, as the reference sampler does."""
    ordered, ids = (logits.float() / values.get("temperature", 1.0)).sort(
        descending=True, stable=True
    )
    if values.get("top_k"):
        ordered[values["top_k"] :] = float("-inf")
    weights = torch.softmax(ordered.double(), dim=-1)
    weights[weights.cumsum(0) - weights >= values.get("top_p", 1.0)] = 0.0
    weights[weights < values.get("min_p", 0.0) * weights[0]] = 0.0
    return set(ids[weights > 0].tolist())


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 1},
        {"top_k": 40},
        {"top_p": 0.5},
        {"top_p": 0.95, "temperature": 1.7},
        {"min_p": 0.1},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.02},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_adjusted", [False, True])
def test_draws_only_remaining_tokens(
    values: dict[str, Any],
    is_adjusted: bool,
    device: torch.device,
    narrow: torch.dtype,
    is_small: bool,
) -> None:
    """Equal logits at the limit may all remain. Random float logits are rarely equal, so at most
    one more token is allowed."""
    torch.manual_seed(1)
    num_rows = 8 if is_small else 256
    table = SlotTable(num_rows, VOCAB, device)
    line = torch.randn(VOCAB, device=device).mul(3).to(narrow)
    extra: dict[str, Any] = {"logit_bias": {0: 0.0}} if is_adjusted else {}
    for slot in range(num_rows):
        fill_slot(table, slot, seed=slot, **values, **extra)
    kept = kept_tokens(line.cpu(), **values)
    border = min(float(line[token]) for token in kept)
    drawn: set[int] = set()
    for position in range(1 if is_small else 20):
        slots, positions, masks = list(range(num_rows)), [position] * num_rows, [-1] * num_rows
        tokens = TritonSampler(table).sample(
            line.expand(num_rows, -1).contiguous(),
            *(as_int32(v, device) for v in (slots, positions, masks)),
        )
        drawn |= set(tokens.tolist())
    assert all(float(line[token]) >= border for token in drawn)
    assert len(drawn) > 1 or len(kept) == 1


def test_draws_follow_the_distribution_and_the_seed(device: torch.device, is_small: bool) -> None:
    """A chi-square test over a small vocabulary with 30 degrees of freedom. The limit is far beyond
    chance."""
    if is_small:
        pytest.skip("needs many draws: too slow in the interpreter")
    torch.manual_seed(2)
    vocab, num_rows, num_steps = 31, 256, 200
    table = SlotTable(num_rows, vocab, device)
    line = torch.randn(vocab, device=device)
    for slot in range(num_rows):
        fill_slot(table, slot, seed=1000 + slot, temperature=0.7)
    sampler, logits = TritonSampler(table), line.expand(num_rows, -1).contiguous()
    slots, masks = as_int32(list(range(num_rows)), device), as_int32([-1] * num_rows, device)
    draws = torch.stack(
        [
            sampler.sample(logits, slots, as_int32([p] * num_rows, device), masks)
            for p in range(num_steps)
        ]
    )
    again = torch.stack(
        [
            sampler.sample(logits, slots, as_int32([p] * num_rows, device), masks)
            for p in range(num_steps)
        ]
    )
    assert torch.equal(draws, again)
    expected = torch.softmax(line.double() / 0.7, dim=-1) * draws.numel()
    counts = torch.bincount(draws.flatten().long(), minlength=vocab).double()
    assert float(((counts - expected) ** 2 / expected).sum()) < 75.0
    assert len({tuple(column) for column in draws.t().tolist()}) == num_rows, (
        "different seeds gave the same stream"
    )


def test_reference_draws_follow_the_distribution() -> None:
    table = SlotTable(1, 31, torch.device("cpu"))
    line = torch.randn(31, generator=torch.Generator().manual_seed(3))
    fill_slot(table, 0, seed=9, temperature=1.3)
    count = 40_000
    rows = table.rows[torch.zeros(count, dtype=torch.long)]
    draws = draw(line.expand(count, -1), rows, torch.arange(count))
    expected = torch.softmax(line.double() / 1.3, dim=-1).numpy() * count
    counts = np.bincount(draws.numpy(), minlength=31)
    assert float(((counts - expected) ** 2 / expected).sum()) < 75.0
