"""Persimmon: layer norms, biases everywhere, squared ReLU, layer-normed queries and keys, half of
each head rotated."""

from __future__ import annotations

from typing import Any

from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.decoder_config import DecoderConfig, NormKind
from naiad.llm.models.falcon import arrange_qkv
from naiad.llm.models.family import Family
from naiad.llm.models.llama import read_activation
from naiad.llm.models.rope import read_rope


def read_config(raw: dict[str, Any]) -> DecoderConfig:
    num_heads = raw["num_attention_heads"]
    head_dim = raw["hidden_size"] // num_heads
    return DecoderConfig(
        model_type="persimmon",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        max_position_embeddings=raw.get("max_position_embeddings", 16384),
        rope=read_rope(raw, head_dim, partial_default=0.5, theta_default=25000.0),
        norm=NormKind.LAYER,
        norm_eps=raw.get("layer_norm_eps", 1e-5),
        qk_norm=NormKind.LAYER if raw.get("qk_layernorm", True) else None,
        has_qkv_bias=True,
        has_o_bias=True,
        has_mlp_bias=True,
        activation=read_activation(raw.get("hidden_act", "relu2")),
        is_gated=False,
        attention_scale=head_dim**-0.5,
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=read_eos(raw),
        bos_token_id=raw.get("bos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


FAMILY = Family(
    read_config=read_config,
    layer_prefix="model.layers.{}.",
    layer_names={
        "qkv": ["self_attn.query_key_value"],
        "o": ["self_attn.dense"],
        "up": ["mlp.dense_h_to_4h"],
        "down": ["mlp.dense_4h_to_h"],
        "input_norm": ["input_layernorm"],
        "mlp_norm": ["post_attention_layernorm"],
        "q_norm": ["self_attn.q_layernorm"],
        "k_norm": ["self_attn.k_layernorm"],
    },
    outer_names={
        "embedding": "model.embed_tokens",
        "final_norm": "model.final_layernorm",
        "head": "lm_head",
    },
    arrange={"qkv": arrange_qkv},
)
