"""Tiny random checkpoints of every family, made by transformers, and its logits as the
reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB = 211
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 256,
}  # fmt: skip
BIAS = {"attention_bias": True, "mlp_bias": True}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("Llama", {"intermediate_size": 96}),
    "llama3": ("Llama", {"intermediate_size": 96, "num_key_value_heads": 2,
        "rope_parameters": LLAMA3}),
    "llama-linear": ("Llama",
        {"intermediate_size": 96, "num_key_value_heads": 1, "rope_parameters": LINEAR, **BIAS}),
    "smollm2": ("Llama", {"intermediate_size": 96, "num_key_value_heads": 2,
        "tie_word_embeddings": True}),
    "mistral": ("Mistral",
        {"intermediate_size": 96, "num_key_value_heads": 2, "sliding_window": 20}),
    "qwen2": ("Qwen2", {"intermediate_size": 96, "num_key_value_heads": 2,
        "rope_parameters": YARN}),
    "qwen2-window": (
        "Qwen2",
        {"intermediate_size": 96, "num_key_value_heads": 2, "use_sliding_window": True,
            "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 32,
        "tie_word_embeddings": True}),
    "phi3": ("Phi3", {"intermediate_size": 96, "num_key_value_heads": 2, "sliding_window": 24}),
    "phi3-long": ("Phi3", {"intermediate_size": 96, "num_key_value_heads": 2,
        "rope_parameters": LONGROPE}),
    "gemma2": (
        "Gemma2",
        {
            "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 32,
            "sliding_window": 16, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0,
        },
    ),
    "falcon-7b": ("Falcon", {"multi_query": True, "parallel_attn": True}),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-sequential": ("Falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "persimmon": ("Persimmon", {"intermediate_size": 96}),
}  # fmt: skip


def save_checkpoint(name: str, folder: Path) -> transformers.PreTrainedModel:
    kind, values = FAMILIES[name]
    return save_model(getattr(transformers, f"{kind}Config")(**COMMON | values), folder)


def save_model(config: transformers.PreTrainedConfig, folder: Path) -> transformers.PreTrainedModel:
    """Weights large enough that the two best logits are seldom close."""
    torch.manual_seed(17)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.25)
        else:
            parameter.data.uniform_(-0.5, 0.5).add_(0.0 if config.model_type == "gemma2" else 1.0)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def check_greedy(model: transformers.PreTrainedModel, prompt: list[int], output: list[int]) -> None:
    """Every token is the reference's best after all before it; only near-ties (1e-4) may differ."""
    logits = model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1].float()
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    worst = float((best - chosen).max())
    assert worst < 1e-4, f"a token is {worst:.5f} below the reference's best"
