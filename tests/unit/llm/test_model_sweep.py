"""A short form of the sweep over architectures: what agrees with transformers, and what is refused
with its reason. No architecture gives other tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("transformers", reason="needs transformers (the llm extra)")

from tests.unit.llm.model_sweep import verdict

RIGHT = (
    "cohere2", "deepseek_v3", "exaone4", "gemma3_text", "gemma4_text", "glm4", "gpt2", "gpt_neox",
    "granitemoe", "minimax_m2", "ministral3", "mixtral", "olmo3", "opt", "phi", "qwen3_moe",
    "smollm3", "starcoder2",
)  # fmt: skip
REFUSED = {
    "bloom": "attention interface",
    "diffllama": "attends 2 times",
    "doge": "is not understood",
    "falcon_h1": "layer_types has 'hybrid'",
    "gpt_oss": "an argument 's_aux'",
    "gptj": "does not use its attention interface",
    "granite_swa": "an argument 's_aux'",
    "llama4_text": "layer_types has 'chunked_attention'",
    "mamba": "layer_types has",
    "mimo_v2_flash": "an argument 's_aux'",
    "mpt": "does not use its attention interface",
    "qwen3_next": "layer_types has 'linear_attention'",
    "roberta": "its answers are not those of transformers",
}


@pytest.mark.parametrize("model_type", RIGHT)
def test_an_architecture_gives_the_tokens_of_transformers(model_type: str, tmp_path: Path) -> None:
    result, reason = verdict(model_type, tmp_path)
    assert result == "right", reason


@pytest.mark.parametrize("model_type", REFUSED)
def test_an_architecture_is_refused_with_its_reason(model_type: str, tmp_path: Path) -> None:
    result, reason = verdict(model_type, tmp_path)
    assert (result, REFUSED[model_type] in reason) == ("refused", True), reason
    assert reason.startswith(f"model_type '{model_type}'")
