"""Tests of sampling on the CPU: penalties and masks against values computed by hand, distributions
by counting, seeds by repeating."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")

import torch

from naiad.errors import NaiadError
from naiad.llm.generation import GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.sequence import Sequence
from naiad.llm.step.slot_table import SlotTable
from naiad.llm.step.torch_sampler import TorchSampler, draw, uniform_number

VOCAB = 12
CPU = torch.device("cpu")


def fill(
    table: SlotTable,
    slot: int = 0,
    seed: int = 0,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    **values: Any,
) -> None:
    request = GenerationRequest(
        id="", prompt=[], parameters=SamplingParameters(**{"temperature": 0.0, **values})
    )
    sequence = Sequence(request, 0, prompt or [0], 1000, seed, 0)
    sequence.tokens += output or []
    sequence.slot = slot
    sequence.stop_token_ids = frozenset(request.parameters.stop_token_ids)
    table.rows[slot] = torch.from_numpy(table.pack(sequence))


def pick(table: SlotTable, logits: list[float], position: int = 5) -> int:
    one = torch.tensor([0], dtype=torch.int32)
    return int(
        TorchSampler(table).sample(
            torch.tensor([logits]), one, torch.tensor([position], dtype=torch.int32), one - 1
        )[0]
    )


def ramp(**raised: float) -> list[float]:
    logits = [0.0] * VOCAB
    for name, value in raised.items():
        logits[int(name[1:])] = value
    return logits


@pytest.mark.parametrize(
    ("values", "logits", "expected"),
    [
        ({}, ramp(t3=2.0, t7=2.0), 3),
        ({"repetition_penalty": 2.0, "prompt": [3]}, ramp(t3=2.0, t7=1.5), 7),
        ({"repetition_penalty": 2.0, "output": [3]}, ramp(t3=2.0, t7=1.5), 7),
        ({"repetition_penalty": 1.1, "prompt": [3]}, ramp(t3=2.0, t7=1.5), 3),
        (
            {"repetition_penalty": 2.0, "prompt": list(range(VOCAB))},
            [-1.0] * 4 + [-0.4] + [-1.0] * 7,
            4,
        ),
        ({"presence_penalty": 1.0, "prompt": [3]}, ramp(t3=2.0, t7=1.5), 3),
        ({"presence_penalty": 1.0, "output": [3, 3]}, ramp(t3=2.0, t7=1.5), 7),
        ({"frequency_penalty": 0.2, "output": [3, 3]}, ramp(t3=2.0, t7=1.5), 3),
        ({"frequency_penalty": 0.2, "output": [3, 3, 3]}, ramp(t3=2.0, t7=1.5), 7),
        ({"logit_bias": {7: 1.0}}, ramp(t3=2.0, t7=1.5), 7),
        ({"logit_bias": {3: -100.0, 7: -100.0}}, ramp(t3=2.0, t7=1.5, t9=0.1), 9),
        ({"min_tokens": 5, "stop_token_ids": [3]}, ramp(t3=2.0, t7=1.5), 7),
    ],
)
def test_adjusted_argmax(values: dict[str, Any], logits: list[float], expected: int) -> None:
    table = SlotTable(1, VOCAB, CPU)
    fill(table, **values)
    assert pick(table, logits) == expected


def test_stop_tokens_are_possible_again_at_min_tokens() -> None:
    table = SlotTable(1, VOCAB, CPU)
    fill(table, prompt=[0, 1], min_tokens=3, stop_token_ids=[3])
    assert [pick(table, ramp(t3=2.0, t7=1.0), position) for position in (2, 3, 4, 5)] == [
        7,
        7,
        7,
        3,
    ]


def test_counts_the_chosen_tokens() -> None:
    table = SlotTable(1, VOCAB, CPU)
    fill(table, frequency_penalty=0.4)
    assert [pick(table, ramp(t3=2.0, t7=1.7)) for _ in range(5)] == [3, 7, 3, 7, 3]
    assert table.next_tokens[0] == 3


def draws(count: int, logits: torch.Tensor, seed: int = 5, **values: Any) -> np.ndarray[Any, Any]:
    table = SlotTable(1, logits.shape[0], CPU)
    fill(table, seed=seed, **{"temperature": 1.0, **values})
    rows = table.rows[torch.zeros(count, dtype=torch.long)]
    return draw(logits.expand(count, -1), rows, torch.arange(count)).numpy()


def expected_weights(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> np.ndarray[Any, Any]:
    """Written over again, one token at a time."""
    weights = torch.softmax(logits.double() / temperature, dim=-1).numpy()
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    kept = order[:top_k] if top_k > 0 else order
    total = sum(weights[token] for token in kept)
    running, survivors = 0.0, []
    for token in kept:
        if running / total < top_p:
            survivors.append(token)
        running += weights[token]
    survivors = [token for token in survivors if weights[token] >= min_p * weights[order[0]]]
    out = np.zeros_like(weights)
    out[survivors] = weights[survivors]
    return out / out.sum()


@pytest.mark.parametrize(
    "values",
    [
        {}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.6},
        {"min_p": 0.2}, {"top_k": 5, "top_p": 0.7},
        {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)  # fmt: skip
def test_draws_follow_the_distribution(values: dict[str, Any]) -> None:
    logits = torch.randn(20, generator=torch.Generator().manual_seed(8)) * 1.5
    count = 30_000
    expected = expected_weights(logits, **values) * count
    found = np.bincount(draws(count, logits, **values), minlength=20)
    assert (found[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = float(((found - expected)[possible] ** 2 / expected[possible]).sum())
    assert chi_square < 60.0, (
        "19 degrees of freedom: chance gives less than 44 in 999 of 1000 cases"
    )


def test_the_stream_depends_on_seed_and_position_alone() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(9))
    assert (draws(500, logits, seed=1) == draws(500, logits, seed=1)).all()
    assert (draws(500, logits, seed=1) != draws(500, logits, seed=2)).any()
    numbers = [uniform_number(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(numbers)) == len(numbers)
    assert 0.0 <= min(numbers) < max(numbers) < 1.0
    assert abs(np.mean(numbers) - 0.5) < 0.01


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_p": 1.1},
        {"min_p": 2.0}, {"top_k": -2}, {"n": 0},
        {"n": 1000}, {"max_tokens": 0}, {"min_tokens": -1}, {"min_tokens": 9, "max_tokens": 8},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 1e9}, {"logprobs": 21},
        {"logprobs": -1}, {"logit_bias": {VOCAB: 1.0}}, {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: float("nan")}},
        {"stop_token_ids": [VOCAB]}, {"stop": [""]}, {"bad_words": [""]},
    ],
    ids=str,
)  # fmt: skip
def test_rejects_bad_parameters_with_their_name(values: dict[str, Any]) -> None:
    with pytest.raises(NaiadError) as caught:
        SamplingParameters(**values).check(VOCAB)
    assert any(name in caught.value.message for name in values)
