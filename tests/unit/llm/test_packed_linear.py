"""Packed matrices multiply as plain ones do; which way each checkpoint and dtype takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

import torch

from naiad.llm.engine import Engine
from naiad.llm.models import packed_linear
from naiad.llm.models.decoder import Decoder
from naiad.llm.models.decoder_weights import Linear
from naiad.llm.models.packed_linear import HalfLinear, apply_linear, apply_linear_add, pack
from tests.unit.llm import checkpoints
from tests.unit.llm.engines import request, run, small_engine

needs_packing = pytest.mark.skipif(
    not packed_linear.can_reorder(torch.float32), reason="no library here packs matrices"
)
PROMPTS = [[5, 6, 7], list(range(3, 45)), [9] * 17]


@pytest.mark.parametrize("is_half_enough", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 70])
def test_products_equal_those_of_the_plain_matrix(
    num_rows: int, has_bias: bool, is_half_enough: bool
) -> None:
    torch.manual_seed(1)
    plain = Linear(torch.randn(37, 50), torch.randn(37) if has_bias else None)
    # Every other column of a wider tensor: rows are not dense.
    x, addend = torch.randn(num_rows, 100)[:, ::2], torch.randn(num_rows, 37)
    weight = (
        plain.weight.half().double()
        if is_half_enough and packed_linear.can_halve(plain.weight)
        else plain.weight.double()
    )
    expected = x.double() @ weight.T + (plain.bias.double() if plain.bias is not None else 0.0)
    packed = pack(plain, is_half_enough)
    torch.testing.assert_close(apply_linear(x, packed).double(), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(
        apply_linear_add(x, packed, addend).double(),
        expected + addend.double(),
        atol=1e-4,
        rtol=1e-5,
    )
    assert pack(packed, is_half_enough) is packed or not packed_linear.can_reorder(torch.float32)


def test_keeps_numbers_beyond_float16() -> None:
    weight = torch.full((4, 4), 1.0e5)
    packed = pack(Linear(weight), True)
    assert not isinstance(packed, HalfLinear)
    assert torch.equal(apply_linear(torch.eye(4), packed), weight)


def head_of(engine: Engine) -> Linear:
    assert isinstance(engine.runner.model, Decoder)
    return engine.runner.model.weights.head


@needs_packing
@pytest.mark.parametrize(("saved", "values", "is_half"), [
    (torch.bfloat16, {"dtype": "auto"}, True), (torch.float16, {"dtype": "auto"}, True),
    (torch.float32, {"dtype": "auto"}, False),
    (torch.bfloat16, {"dtype": "float32"}, False), (torch.bfloat16, {"dtype": "bfloat16"}, False),
], ids=str)  # fmt: skip
def test_matrices_are_halved_only_where_nothing_is_lost(
    saved: Any, values: dict[str, Any], is_half: bool, tmp_path: Path
) -> None:
    checkpoints.save_checkpoint("smollm2", tmp_path).to(saved).save_pretrained(tmp_path)
    assert isinstance(head_of(small_engine(tmp_path, **values)), HalfLinear) == is_half


@pytest.mark.parametrize("family", ["smollm2", "qwen3", "gemma2", "falcon-40b", "persimmon"])
def test_a_bfloat16_checkpoint_computes_in_float32(family: str, tmp_path: Path) -> None:
    """Its numbers are all in float16 as well, so the reference in float32 is met as exactly as by
    float32 itself."""
    model = checkpoints.save_checkpoint(family, tmp_path).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    engine = small_engine(tmp_path, dtype="auto")
    completions = run(
        engine, [request(str(i), prompt, max_tokens=12) for i, prompt in enumerate(PROMPTS)]
    )
    for index, prompt in enumerate(PROMPTS):
        checkpoints.check_greedy(model.float(), prompt, completions[(str(index), 0)].tokens)


@pytest.mark.parametrize("family", ["smollm2", "mistral", "qwen3", "gemma2"])
@torch.inference_mode()
def test_bfloat16_chooses_tokens_that_float32_finds_good(family: str, tmp_path: Path) -> None:
    model = checkpoints.save_checkpoint(family, tmp_path)
    engine = small_engine(tmp_path, dtype="bfloat16")
    completions = run(
        engine, [request(str(i), prompt, max_tokens=12) for i, prompt in enumerate(PROMPTS)]
    )
    for index, prompt in enumerate(PROMPTS):
        output = completions[(str(index), 0)].tokens
        logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        best, worst = logits.max(dim=-1).values, logits.min(dim=-1).values
        chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert float(((best - chosen) / (best - worst)).max()) < 0.1
