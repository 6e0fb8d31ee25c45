"""Phi-3: Llama's layer with the matrices already merged in the checkpoint, part of each head
rotated, long-context rope factors."""

from __future__ import annotations

from typing import Any

from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.family import Family
from naiad.llm.models.llama import read_activation
from naiad.llm.models.rope import read_rope


def read_config(raw: dict[str, Any]) -> DecoderConfig:
    num_heads, num_layers = raw["num_attention_heads"], raw["num_hidden_layers"]
    head_dim = raw.get("head_dim") or raw["hidden_size"] // num_heads
    window = raw.get("sliding_window")
    return DecoderConfig(
        model_type="phi3",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_position_embeddings=raw.get("max_position_embeddings", 4096),
        rope=read_rope(raw, head_dim),
        norm_eps=raw.get("rms_norm_eps", 1e-5),
        activation=read_activation(raw.get("hidden_act", "silu")),
        attention_scale=head_dim**-0.5,
        sliding_windows=[window] * num_layers if window else [],
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=read_eos(raw),
        bos_token_id=raw.get("bos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


FAMILY = Family(
    read_config=read_config,
    layer_prefix="model.layers.{}.",
    layer_names={
        "qkv": ["self_attn.qkv_proj"],
        "o": ["self_attn.o_proj"],
        "up": ["mlp.gate_up_proj"],
        "down": ["mlp.down_proj"],
        "input_norm": ["input_layernorm"],
        "mlp_norm": ["post_attention_layernorm"],
    },
    outer_names={"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
)
