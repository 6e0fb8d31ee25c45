"""Steps with prompts that are padded to the size of a captured graph compute the same as without
padding."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

import torch

from naiad.llm.engine import Engine
from naiad.llm.generation import GenerationRequest, TokenLogprobs
from naiad.llm.parameters import SamplingParameters
from naiad.llm.step.prompt_graphs import SIZES, prompt_ladder
from naiad.llm.step.step_stager import StepStager, padded_size
from naiad.llm.token_scheduler import StepPlan
from tests.gpu.conftest import IS_INTERPRETED
from tests.gpu.test_engine import VOCAB, build, lively_weights, tiny_config

LENGTHS = ((3,), (1, 70, 5), (90, 2), (64, 17, 1), (1, 1, 1), (40,))
"""Lengths of prompts that are added step by step, while earlier ones generate."""


def plans_seen(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[StepPlan, torch.Tensor, torch.Tensor]]:
    """Runs prompts of LENGTHS. Returns for each step with prompts its plan and its logits, without
    and with padding. Both leave the same cache."""
    runner, stager = engine.runner, engine.runner.stager
    model: Any = runner.model
    seen: list[tuple[StepPlan, torch.Tensor, torch.Tensor]] = []
    plain = runner._run

    def run(plan: StepPlan, mask_rows: dict[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        padded = torch.empty(0)
        if plan.num_single < len(plan.rows):
            step = stager.stage_padded(
                plan, padded_size(plan) + source.choice([0, 1, 13]), mask_rows
            )
            padded = model.logits(model.run_layers(step, runner.cache), step).clone()
        logits, sampled = plain(plan, mask_rows)
        if padded.shape[0]:
            seen.append((plan, logits.clone(), padded))
        return logits, sampled

    source = random.Random(4)
    monkeypatch.setattr(runner, "_run", run)
    for number, lengths in enumerate(LENGTHS):
        for index, length in enumerate(lengths):
            prompt = [source.randrange(VOCAB) for _ in range(length)]
            parameters = SamplingParameters(temperature=0.0, max_tokens=4, ignore_eos=True)
            engine.submit(
                GenerationRequest(id=f"{number}.{index}", prompt=prompt, parameters=parameters)
            )
        engine.step()
    while engine.has_work:
        engine.step()
    return seen


@pytest.mark.parametrize("family", ["llama", "falcon", "gemma2"])
def test_padding_does_not_change_the_results(
    family: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(family)
    values: dict[str, Any] = (
        {"use_triton_interpreter": True} if IS_INTERPRETED else {"use_cuda_graphs": False}
    )
    engine = build(config, lively_weights(config), device, max_num_batched_tokens=256, **values)
    planner = engine.runner.stager._planner
    engine.runner.stager = StepStager(256, 12, planner, device, max_padded_tokens=512)
    seen = plans_seen(engine, monkeypatch)
    assert len(seen) >= len(LENGTHS) - 1
    for plan, want, got in seen:
        assert want.shape == got.shape == (sum(row.is_sampled for row in plan.rows), VOCAB)
        torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3)


def test_graphs_generate_the_same_tokens_as_single_launches(device: torch.device) -> None:
    """Runs the engine with split prompts, several prompts in a step, and decoding in between."""
    if IS_INTERPRETED:
        pytest.skip("captures, so it needs a GPU")
    config = tiny_config("llama")
    generated = []
    for use_cuda_graphs in (False, True):
        engine = build(
            config,
            lively_weights(config),
            device,
            max_num_batched_tokens=200,
            use_cuda_graphs=use_cuda_graphs,
        )
        assert len(engine.runner.graphs) == (2 if use_cuda_graphs else 0)
        source = random.Random(6)
        tokens: dict[str, list[TokenLogprobs]] = {}
        for number in range(40):
            prompt = [
                source.randrange(VOCAB) for _ in range(source.choice([1, 2, 30, 90, 190, 500]))
            ]
            parameters = SamplingParameters(
                temperature=0.0, max_tokens=source.randint(1, 12), ignore_eos=True, logprobs=2
            )
            engine.submit(GenerationRequest(id=str(number), prompt=prompt, parameters=parameters))
            for output in engine.step():
                tokens.setdefault(output.request_id, []).extend(output.logprobs or [])
        while engine.has_work:
            for output in engine.step():
                tokens.setdefault(output.request_id, []).extend(output.logprobs or [])
        generated.append(tokens)
    want, got = generated
    assert want.keys() == got.keys()
    for name, expected in want.items():
        for one, other in zip(expected, got[name], strict=True):
            if one.token != other.token:
                assert abs(one.top[0][1] - one.top[1][1]) < 1e-3
                break
            assert abs(one.logprob - other.logprob) < 2e-3


@pytest.mark.parametrize(
    ("max_tokens", "num_parameters", "last"),
    [
        (8192, 8_030_000_000, 512),
        (8192, 600_000_000, 2048),
        (95, 1, 96),
        (96, 1, 128),
        (100, 1, 128),
        (7, 1, 16),
        (9999, 1, 2048),
    ],
)
def test_graph_sizes_end_where_the_device_is_slower_than_the_host(
    max_tokens: int, num_parameters: int, last: int
) -> None:
    sizes = prompt_ladder(max_tokens, num_parameters)
    assert sizes == SIZES[: len(sizes)]
    assert sizes[-1] == last


def test_many_short_prompts_need_a_larger_graph(device: torch.device) -> None:
    # Importing prompt_graphs needs a GPU or the interpreter, for which this fixture checks.
    del device
    config = tiny_config("llama")
    engine = build(config, lively_weights(config), torch.device("cpu"), max_num_batched_tokens=256)
    for number in range(10):
        engine.submit(
            GenerationRequest(
                id=str(number), prompt=[number + 1, 7], parameters=SamplingParameters(max_tokens=2)
            )
        )
    plan = engine.scheduler.schedule()
    assert plan.num_tokens == 20
    assert padded_size(plan) == 160
