"""Every family gives transformers' greedy tokens, whatever else is in the batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

import torch

from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from naiad.llm.start.load import load_engine
from tests.unit.llm import checkpoints
from tests.unit.llm.engines import Gatherer, check_empty, request, run, small_engine


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    """Alone, then in a mixed batch with chunked prompts, shared prefixes, preemptions and a
    cancellation."""
    model = checkpoints.save_checkpoint(family, tmp_path)
    source = random.Random(family)
    shared = [source.randrange(checkpoints.VOCAB) for _ in range(13)]
    prompts = [
        shared[: source.choice([0, 8, 13])]
        + [source.randrange(checkpoints.VOCAB) for _ in range(source.randint(1, 40))]
        for _ in range(9)
    ]
    alone = small_engine(tmp_path)
    for index, prompt in enumerate(prompts[:2]):
        completion = run(alone, [request(str(index), prompt, max_tokens=12)])[(str(index), 0)]
        checkpoints.check_greedy(model, prompt, completion.tokens)

    engine = small_engine(tmp_path)
    gatherer = Gatherer()
    for index, prompt in enumerate(prompts):
        engine.submit(request(str(index), prompt, max_tokens=20))
    for step in range(10_000):
        if step == 9:
            engine.cancel("2")
        gatherer.take(engine.step())
        if not engine.has_work:
            break
    check_empty(engine)
    assert engine.scheduler.num_preemptions > 0
    assert engine.scheduler.num_prefix_hits > 0
    for index, prompt in enumerate(prompts):
        completion = gatherer.completions[(str(index), 0)]
        assert len(completion.tokens) == 20 or index == 2
        if completion.tokens:
            checkpoints.check_greedy(model, prompt, completion.tokens)


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_steps_in_flight_change_nothing(is_asynchronous: bool, tmp_path: Path) -> None:
    model = checkpoints.save_checkpoint("llama3", tmp_path)
    source = random.Random(4)
    prompts = [
        [source.randrange(checkpoints.VOCAB) for _ in range(source.randint(1, 40))]
        for _ in range(12)
    ]
    engine = small_engine(tmp_path, is_asynchronous=is_asynchronous)
    completions = run(
        engine,
        [request(str(i), p, max_tokens=source.randint(1, 25)) for i, p in enumerate(prompts)],
    )
    assert engine.scheduler.num_preemptions > 0
    for index, prompt in enumerate(prompts):
        checkpoints.check_greedy(model, prompt, completions[(str(index), 0)].tokens)


def test_rejects_a_checkpoint_that_does_not_fit_its_config(tmp_path: Path) -> None:
    checkpoints.save_checkpoint("llama2", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"intermediate_size": 96', '"intermediate_size": 128')
    )
    with pytest.raises(NaiadError, match=r"up_proj.weight|gate_proj.weight|rows together"):
        small_engine(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    checkpoints.save_checkpoint("llama2", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    )
    with pytest.raises(NaiadError, match=r"no tensor 'model.layers.3"):
        small_engine(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("config.json", None), ("config.json", "{"), ("config.json", "[]"), ("config.json", "{}")],
)
def test_a_broken_folder_is_that_folders_error(
    name: str, content: str | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(NaiadError, match=r"config.json"):
        small_engine(tmp_path)


@pytest.mark.parametrize(
    "values",
    [
        {"device": "abacus"},
        {"device": "cuda:99"},
        {"dtype": "int4"},
        {"block_size": 3},
        {"max_num_seqs": 0},
    ],
    ids=str,
)
def test_rejects_bad_settings_with_their_name(values: dict[str, Any], tmp_path: Path) -> None:
    checkpoints.save_checkpoint("llama2", tmp_path)
    with pytest.raises(NaiadError, match=next(iter(values))):
        load_engine(tmp_path, EngineSettings(**values))


def test_pickled_weights_need_the_option(tmp_path: Path) -> None:
    model = checkpoints.save_checkpoint("llama2", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(NaiadError, match="allow_pickle"):
        small_engine(tmp_path)
    prompt = [5, 6, 7]
    completion = run(
        small_engine(tmp_path, allow_pickle=True), [request("a", prompt, max_tokens=6)]
    )[("a", 0)]
    checkpoints.check_greedy(model, prompt, completion.tokens)


def test_rejects_an_unknown_rope(tmp_path: Path) -> None:
    checkpoints.save_checkpoint("llama3", tmp_path)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"llama3"', '"spiral"'))
    with pytest.raises(NaiadError, match="rope type 'spiral'"):
        small_engine(tmp_path)
