"""Tests that architectures of no family run with transformers' own code and Naiad's paged
attention, or are rejected with a reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
transformers = pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

from naiad.backends.llm.open import open_model
from naiad.backends.llm.options import LlmOptions
from naiad.backends.llm.text_process import TextProcesses
from naiad.errors import NaiadError
from naiad.llm.engine_settings import EngineSettings
from tests.unit.llm import checkpoints
from tests.unit.llm.engines import request, run, small_engine

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("Olmo2", {"intermediate_size": 96, "num_key_value_heads": 2}),
    "gpt-neox": ("GPTNeoX", {"intermediate_size": 96}),
    "stablelm": ("StableLm", {"intermediate_size": 96, "num_key_value_heads": 2}),
    "cohere": ("Cohere", {"intermediate_size": 96, "num_key_value_heads": 2}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4,
            "num_experts_per_tok": 2, "num_key_value_heads": 2,
            "head_dim": 16,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    kind, values = OTHERS[name]
    model = checkpoints.save_model(
        getattr(transformers, f"{kind}Config")(**checkpoints.COMMON | values), tmp_path
    )
    source = random.Random(name)
    shared = [source.randrange(checkpoints.VOCAB) for _ in range(9)]
    prompts = [
        shared + [source.randrange(checkpoints.VOCAB) for _ in range(source.randint(1, 40))]
        for _ in range(7)
    ]
    engine = small_engine(tmp_path)
    completions = run(
        engine, [request(str(i), prompt, max_tokens=15) for i, prompt in enumerate(prompts)]
    )
    assert engine.code == "transformers' code"
    assert engine.scheduler.num_prefix_hits > 0
    for index, prompt in enumerate(prompts):
        assert len(completions[(str(index), 0)].tokens) == 15
        checkpoints.check_greedy(model, prompt, completions[(str(index), 0)].tokens)


@pytest.mark.parametrize(
    ("kind", "values"),
    [("Mamba", {"state_size": 4, "expand": 2}), ("Bloom", {"n_head": 4})],
)
def test_rejects_models_that_mix_tokens_outside_of_attention(
    kind: str, values: dict[str, Any], tmp_path: Path
) -> None:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=211, hidden_size=64, num_hidden_layers=2, **values
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(NaiadError, match=kind.lower()) as caught:
        small_engine(tmp_path)
    assert "attention" in str(caught.value)


def test_the_path_that_runs_is_shown(tmp_path: Path) -> None:
    checkpoints.save_model(
        transformers.Olmo2Config(**checkpoints.COMMON | {"intermediate_size": 96}), tmp_path
    )
    lines: list[str] = []
    options = LlmOptions(settings=EngineSettings(device="cpu", num_kv_blocks=30, block_size=4))
    options = msgspec.structs.replace(options, checkpoint=str(tmp_path), engine="native")
    processes = TextProcesses()
    try:
        model = open_model(options, [tmp_path], 1, processes, lines.append)
    finally:
        processes.close()
    assert model.facts()["loaded_engine"] == "native (transformers' code)"
    assert any("runs by transformers' code" in line for line in lines)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_the_context_ends_where_rotary_frequencies_change(kind: str, tmp_path: Path) -> None:
    rope = checkpoints.LONGROPE if kind == "longrope" else {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0,
    }  # fmt: skip
    values = {
        "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "rope_parameters": {**rope, "original_max_position_embeddings": 64},
    }  # fmt: skip
    checkpoints.save_model(transformers.Olmo2Config(**checkpoints.COMMON | values), tmp_path)
    engine = small_engine(tmp_path)
    assert engine.builder.max_model_len == 64
