"""What the engine promises its callers, on a tiny model on the CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

import torch
from numpy.typing import NDArray

from naiad.errors import Code, NaiadError
from naiad.llm.engine import Engine
from naiad.llm.generation import FinishReason, GenerationRequest
from naiad.llm.parameters import SamplingParameters
from naiad.llm.step.runner import LaunchedStep
from tests.unit.llm import checkpoints, tokenizers_made
from tests.unit.llm.engines import Gatherer, check_empty, request, run, small_engine

VOCAB = 402
EOS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with a byte-level tokenizer."""
    path = tmp_path_factory.mktemp("checkpoint")
    config = transformers.LlamaConfig(
        **checkpoints.COMMON
        | {
            "vocab_size": VOCAB,
            "eos_token_id": EOS,
            "intermediate_size": 96,
            "num_key_value_heads": 2,
        }
    )
    checkpoints.save_model(config, path)
    tokenizers_made.byte_level(400).save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engine]:
    built = small_engine(
        folder, is_asynchronous=request.param, num_kv_blocks=64, max_num_seqs=8, seed=1
    )
    yield built
    check_empty(built)


def only(engine: Engine, **values: Any) -> Any:
    prompt = values.pop("prompt", "The quick brown")
    return run(engine, [request("a", prompt, **{"ignore_eos": True, "max_tokens": 20, **values})])[
        ("a", 0)
    ]


def test_text_is_the_tokens_text(engine: Engine) -> None:
    completion = only(engine)
    assert engine.builder.tokenizer is not None
    assert completion.text == engine.builder.tokenizer.decode(completion.tokens)
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(completion.tokens) == 20


def test_max_tokens_is_cut_to_the_context(engine: Engine) -> None:
    length = engine.builder.max_model_len
    completion = only(engine, prompt=[5] * (length - 3), max_tokens=100)
    assert len(completion.tokens) == 3
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_stop_token_ends_the_completion_and_is_reported(engine: Engine) -> None:
    tokens = only(engine).tokens
    stop = tokens[6]
    completion = only(engine, stop_token_ids=[stop])
    assert completion.tokens == tokens[: tokens.index(stop) + 1]
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, stop)
    assert engine.builder.tokenizer is not None
    assert completion.text == engine.builder.tokenizer.decode(completion.tokens[:-1])


def test_end_of_sequence_ends_the_completion_unless_ignored(engine: Engine) -> None:
    completion = only(engine, logit_bias={EOS: 1000.0}, ignore_eos=False)
    assert (completion.tokens, completion.text, completion.finish_reason) == (
        [EOS],
        "",
        FinishReason.STOP,
    )
    assert completion.stop_reason is None
    assert only(engine, logit_bias={EOS: 1000.0}, max_tokens=3).tokens == [EOS] * 3


def test_min_tokens_forbid_the_end(engine: Engine) -> None:
    completion = only(engine, logit_bias={EOS: 1000.0}, ignore_eos=False, min_tokens=4)
    assert len(completion.tokens) == 5
    assert EOS not in completion.tokens[:-1]


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_is_never_returned_in_part(include: bool, engine: Engine) -> None:
    text = only(engine, max_tokens=30).text
    stop = text[9:12]
    completion = only(engine, max_tokens=30, stop=[stop], include_stop_str_in_output=include)
    end = text.index(stop)
    assert completion.text == text[: end + len(stop)] if include else text[:end]
    assert (completion.finish_reason, completion.stop_reason) == (FinishReason.STOP, stop)


def test_stop_strings_wait_for_min_tokens(engine: Engine) -> None:
    whole = only(engine, max_tokens=30)
    stop = whole.text[0]
    completion = only(engine, max_tokens=30, stop=[stop], min_tokens=10)
    assert len(completion.tokens) >= 10


def test_bad_words_are_not_generated(engine: Engine) -> None:
    assert engine.builder.tokenizer is not None
    tokens = only(engine, max_tokens=30).tokens
    single = engine.builder.tokenizer.decode(tokens[2:3])
    completion = only(engine, max_tokens=30, bad_words=[single])
    assert tokens[2] not in completion.tokens


def test_a_bad_word_of_several_tokens_is_not_completed(engine: Engine) -> None:
    tokenizer = engine.builder.tokenizer
    assert tokenizer is not None
    tokens = only(engine, max_tokens=30).tokens
    pairs = [
        (a, b)
        for a, b in pairwise(tokens)
        if tokenizer.encode(tokenizer.decode([a, b]), False) == [a, b]
    ]
    if not pairs:
        pytest.skip("this random model gave no two tokens that spell a word")
    word = tokenizer.decode(list(pairs[0]))
    completion = only(engine, max_tokens=30, bad_words=[word])
    assert pairs[0] not in list(pairwise(completion.tokens))


def test_logprobs_are_the_models_own(engine: Engine, folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert engine.builder.tokenizer is not None
    prompt = engine.builder.tokenizer.encode("The quick brown")
    completion = only(
        engine, logprobs=3, temperature=1.5, seed=3, repetition_penalty=1.3, max_tokens=8
    )
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + completion.tokens])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1)
    assert len(completion.logprobs) == 8
    for entry, token, row in zip(completion.logprobs, completion.tokens, expected, strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        best = row.topk(3)
        assert [one for one, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-3)
    assert only(engine, logprobs=0, max_tokens=2).logprobs[0].top == []


def test_a_seed_fixes_a_requests_stream_whatever_else_runs(engine: Engine) -> None:
    wanted = only(engine, temperature=1.0, seed=11).tokens
    assert only(engine, temperature=1.0, seed=12).tokens != wanted
    others = [
        request(str(i), [3 * i + 1] * (5 * i + 1), temperature=1.0, max_tokens=9, ignore_eos=True)
        for i in range(6)
    ]
    mixed = run(
        engine,
        [
            *others,
            request(
                "a", "The quick brown", temperature=1.0, seed=11, max_tokens=20, ignore_eos=True
            ),
        ],
    )
    assert mixed[("a", 0)].tokens == wanted


def test_completions_of_one_request_differ_and_share_the_prompt(engine: Engine) -> None:
    completions = run(
        engine,
        [request("a", [7] * 21, temperature=1.0, seed=5, n=4, max_tokens=10, ignore_eos=True)],
    )
    assert sorted(completions) == [("a", index) for index in range(4)]
    assert len({tuple(completion.tokens) for completion in completions.values()}) == 4
    assert [completions[("a", index)].num_cached_tokens for index in range(4)] == [0, 20, 20, 20]


def test_cancelled_requests_end_at_once(engine: Engine) -> None:
    gatherer = Gatherer()
    for name in ("a", "b"):
        engine.submit(request(name, [9] * 10, n=2, max_tokens=50, ignore_eos=True))
    for _ in range(4):
        gatherer.take(engine.step())
    engine.cancel("a")
    engine.cancel("unknown")
    used = engine.scheduler.pool.num_used
    gatherer.take(engine.step())
    assert all(
        gatherer.completions[("a", index)].finish_reason is FinishReason.CANCELLED
        for index in range(2)
    )
    assert engine.scheduler.pool.num_used <= used
    engine.cancel("b")
    while engine.has_work:
        gatherer.take(engine.step())
    assert gatherer.completions[("b", 1)].finish_reason is FinishReason.CANCELLED


@pytest.mark.parametrize(
    ("prompt", "values", "words"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ([VOCAB], {}, "402"),
        ([-1], {}, "-1"),
        ([1] * 5000, {}, "5000 tokens"),
        ("x", {"top_p": 2.0}, "top_p"),
        ("x", {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ],
)
def test_a_bad_request_is_its_own_error(
    prompt: Any, values: dict[str, Any], words: str, engine: Engine
) -> None:
    with pytest.raises(NaiadError, match=words) as caught:
        engine.submit(request("bad", prompt, **values))
    assert caught.value.code is Code.INVALID_ARG
    assert not engine.has_work
    assert len(only(engine, max_tokens=3).tokens) == 3


def test_rejects_the_id_of_an_open_request(engine: Engine) -> None:
    engine.submit(request("a", "x", max_tokens=2))
    with pytest.raises(NaiadError, match="'a' is under way"):
        engine.submit(request("a", "y"))
    while engine.has_work:
        engine.step()


def test_the_waiting_queue_is_bounded(folder: Path) -> None:
    engine = small_engine(folder, max_waiting_requests=3)
    for index in range(3):
        engine.submit(request(str(index), "x", max_tokens=2))
    with pytest.raises(NaiadError, match="3 requests wait") as caught:
        engine.submit(request("3", "x", max_tokens=2))
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.retry_after_s is not None
    gatherer = Gatherer()
    while engine.has_work:
        gatherer.take(engine.step())
    assert len(gatherer.completions) == 3


class OnlyEven:
    """A grammar: even tokens, five of them."""

    def __init__(self, seen: int = 0, fails_at: int = -1) -> None:
        self.seen = seen
        self.fails_at = fails_at

    def fill_bitmask(self, bitmask: NDArray[np.int32]) -> None:
        if self.seen == self.fails_at:
            raise RuntimeError("no such rule")
        bitmask.fill(0x55555555)

    def accept(self, token: int) -> bool:
        self.seen += 1
        return token % 2 == 0

    def is_finished(self) -> bool:
        return self.seen == 5

    def fork(self) -> OnlyEven:
        return OnlyEven(self.seen, self.fails_at)


def with_grammar(id: str, grammar: OnlyEven, **values: Any) -> GenerationRequest:
    parameters = SamplingParameters(max_tokens=20, ignore_eos=True, **values)
    return GenerationRequest(id=id, prompt="The", parameters=parameters, grammar=grammar)


def test_a_grammar_masks_and_ends_the_completion(engine: Engine) -> None:
    completions = run(
        engine,
        [
            with_grammar("a", OnlyEven(), n=2, seed=1),
            request("b", "The", max_tokens=12, ignore_eos=True),
        ],
    )
    for index in range(2):
        completion = completions[("a", index)]
        assert len(completion.tokens) == 5
        assert all(token % 2 == 0 for token in completion.tokens)
        assert completion.finish_reason is FinishReason.STOP
    assert len(completions[("b", 0)].tokens) == 12


def test_a_grammar_that_raises_fails_its_request_only(engine: Engine) -> None:
    completions = run(
        engine,
        [
            with_grammar("a", OnlyEven(fails_at=2)),
            request("b", "The", max_tokens=12, ignore_eos=True),
        ],
    )
    assert completions[("a", 0)].finish_reason is FinishReason.ERROR
    assert completions[("a", 0)].error is not None
    assert "no such rule" in completions[("a", 0)].error.message
    assert len(completions[("b", 0)].tokens) == 12


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_long_prompt_leaves_time_for_the_tokens_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_asynchronous: bool
) -> None:
    """The device needs 1 ms per token, so that 48 tokens of a prompt fit 50 ms."""
    engine = small_engine(
        folder,
        max_num_batched_tokens=1024,
        num_kv_blocks=600,
        max_model_len=256,
        is_asynchronous=is_asynchronous,
    )
    now_ns = 1
    sizes: list[tuple[int, int]] = []
    wait = LaunchedStep.wait

    def wait_long(launched: LaunchedStep) -> list[int]:
        nonlocal now_ns
        now_ns += launched.plan.num_tokens * 1_000_000
        sizes.append((launched.plan.num_single, launched.plan.num_tokens))
        return wait(launched)

    monkeypatch.setattr(LaunchedStep, "wait", wait_long)
    engine._clock_ns = lambda: now_ns
    engine.submit(request("short", [1] * 60, max_tokens=20, ignore_eos=True))
    outputs = [*engine.step(), *engine.step()]  # an asynchronous engine measures one step later
    engine.submit(request("long", [2] * 240, max_tokens=1, ignore_eos=True))
    while engine.has_work:
        outputs += engine.step()
    mixed = [size for num_single, size in sizes if num_single and size > num_single]
    assert len(mixed) >= 5
    assert max(mixed) <= 50
    assert sum(len(output.token_ids) for output in outputs if output.request_id == "short") == 20


def test_out_of_memory_leads_to_smaller_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = small_engine(folder, max_num_batched_tokens=1024, num_kv_blocks=600, max_model_len=256)
    forward = engine.runner.model.forward
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def fail_when_large(step: Any, cache: Any) -> Any:
        if step.num_tokens > 300:
            raise torch.OutOfMemoryError("too large")
        return forward(step, cache)

    monkeypatch.setattr(engine.runner.model, "forward", fail_when_large)
    prompts = [[i + 1] * 120 for i in range(5)]
    completions = run(
        engine, [request(str(i), p, max_tokens=6, ignore_eos=True) for i, p in enumerate(prompts)]
    )
    assert all(len(completion.tokens) == 6 for completion in completions.values())
    assert engine.scheduler.max_num_batched_tokens == 256


def test_too_little_memory_for_the_smallest_step_fails_the_requests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = small_engine(folder)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def fail(step: Any, cache: Any) -> Any:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(engine.runner.model, "forward", fail)
    completion = run(engine, [request("a", "x")])[("a", 0)]
    assert completion.error is not None
    assert completion.error.code is Code.UNAVAILABLE


def test_a_failing_step_fails_all_requests_and_is_raised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = small_engine(folder)
    gatherer = Gatherer()
    for name in ("a", "b"):
        engine.submit(request(name, "x", max_tokens=9, ignore_eos=True))
    gatherer.take(engine.step())

    def fail(step: Any, cache: Any) -> Any:
        raise RuntimeError("device lost")

    monkeypatch.setattr(engine.runner.model, "forward", fail)
    with pytest.raises(RuntimeError, match="device lost"):
        engine.step()
    gatherer.take(engine.step())
    assert {completion.finish_reason for completion in gatherer.completions.values()} == {
        FinishReason.ERROR
    }
    check_empty(engine)


def test_a_thousand_random_requests_leave_nothing_behind(folder: Path) -> None:
    engine = small_engine(
        folder,
        is_asynchronous=True,
        max_num_seqs=16,
        num_kv_blocks=80,
        max_num_batched_tokens=64,
        max_model_len=120,
    )
    source = random.Random(6)
    gatherer = Gatherer()
    submitted, completions = 0, 0
    while submitted < 1000 or engine.has_work:
        while submitted < 1000 and len(engine.scheduler.waiting) < 20:
            n = source.choice([1, 1, 1, 3])
            engine.submit(
                request(
                    str(submitted), [source.randrange(VOCAB) for _ in range(source.choice([1, 3, 4,
                        5, 30, 90]))], source.choice([0, 0, 1]),
                    temperature=source.choice([0.0, 1.0]), top_k=source.choice([0, 4]),
                    top_p=source.choice([1.0, 0.8]), n=n,
                    repetition_penalty=source.choice([1.0, 1.2]),
                    logit_bias=source.choice([{}, {5: -5.0}]),
                    max_tokens=source.randint(1, 12),
                    stop_token_ids=source.choice([[], [1, 2, 3, 4, 5, 6, 7, 8]]),
                    logprobs=source.choice([None, None, 2]),
                )
            )  # fmt: skip
            submitted, completions = submitted + 1, completions + n
        if source.random() < 0.3:
            engine.cancel(str(source.randrange(submitted)))
        gatherer.take(engine.step())
    check_empty(engine)
    assert len(gatherer.completions) == completions
    assert engine.scheduler.num_preemptions > 0
    reasons = {completion.finish_reason for completion in gatherer.completions.values()}
    assert reasons == {FinishReason.LENGTH, FinishReason.STOP, FinishReason.CANCELLED}
    assert sum(engine.statistics.finished.values()) == completions
    assert engine.statistics.generation_tokens >= sum(
        len(completion.tokens) for completion in gatherer.completions.values()
    )
