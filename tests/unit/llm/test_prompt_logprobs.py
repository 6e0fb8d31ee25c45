"""Log-probabilities of the prompt's tokens equal those of transformers, however the prompt is cut,
shared and preempted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

from naiad.llm import token_scheduler
from naiad.llm.generation import GenerationRequest, TokenLogprobs
from tests.unit.llm import checkpoints
from tests.unit.llm.engines import Gatherer, check_empty, request, small_engine


def scored(id: str, prompt: list[int], count: int = 2, **values: Any) -> GenerationRequest:
    found = request(id, prompt, **values)
    found.prompt_logprobs = count
    return found


def run(engine: Any, requests: list[GenerationRequest]) -> dict[str, list[TokenLogprobs]]:
    gatherer = Gatherer()
    found: dict[str, list[TokenLogprobs]] = {}
    for one in requests:
        engine.submit(one)
    while engine.has_work:
        outputs = engine.step()
        gatherer.take(outputs)
        for output in outputs:
            if output.prompt_logprobs is not None:
                assert output.request_id not in found
                found[output.request_id] = output.prompt_logprobs
    check_empty(engine)
    assert not engine._scores
    assert all(one.error is None for one in gatherer.completions.values())
    return found


@torch.inference_mode()
def check(model: Any, prompt: list[int], entries: list[TokenLogprobs], count: int) -> None:
    assert [entry.token for entry in entries] == prompt
    assert (entries[0].logprob, entries[0].top) == (0.0, [])
    logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(dim=-1)
    for at, entry in enumerate(entries[1:]):
        assert entry.logprob == pytest.approx(float(logprobs[at, prompt[at + 1]]), abs=2e-4)
        values, _ = logprobs[at].topk(count)
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=2e-4)


@pytest.mark.parametrize("kind", ["smollm2", "olmo2"])
def test_prompts_are_scored_as_transformers_scores_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_scheduler, "MAX_SCORED_TOKENS", 7)
    if kind == "olmo2":
        config = transformers.Olmo2Config(**checkpoints.COMMON | {"intermediate_size": 96})
        model = checkpoints.save_model(config, tmp_path)
    else:
        model = checkpoints.save_checkpoint(kind, tmp_path)
    source = random.Random(kind)
    shared = [source.randrange(checkpoints.VOCAB) for _ in range(12)]
    prompts = [
        shared + [source.randrange(checkpoints.VOCAB) for _ in range(source.randint(0, 30))]
        for _ in range(9)
    ] + [[5], [5, 6]]
    engine = small_engine(tmp_path, num_kv_blocks=24)
    requests = [scored(str(at), prompt, max_tokens=8) for at, prompt in enumerate(prompts)]
    others = [request(f"other{at}", prompt, max_tokens=8) for at, prompt in enumerate(prompts)]
    mixed = [one for pair in zip(requests, others, strict=True) for one in pair]
    found = run(engine, mixed)
    assert engine.scheduler.num_preemptions > 0
    assert set(found) == {str(at) for at in range(len(prompts))}
    for at, prompt in enumerate(prompts):
        check(model, prompt, found[str(at)], 2)


def test_a_request_with_several_completions_is_scored_once(tmp_path: Path) -> None:
    model = checkpoints.save_checkpoint("smollm2", tmp_path)
    prompt = list(range(3, 30))
    engine = small_engine(tmp_path)
    found = run(engine, [scored("a", prompt, 1, n=3, max_tokens=3, temperature=1.0)])
    check(model, prompt, found["a"], 1)


def test_a_cancelled_request_leaves_nothing(tmp_path: Path) -> None:
    checkpoints.save_checkpoint("smollm2", tmp_path)
    engine = small_engine(tmp_path)
    engine.submit(scored("a", list(range(60)), max_tokens=3))
    engine.step()
    assert engine._scores
    engine.cancel("a")
    while engine.has_work:
        engine.step()
    assert not engine._scores
