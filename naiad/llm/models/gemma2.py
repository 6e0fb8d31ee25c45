"""Gemma 2: norms before and after each half, weights around 0, soft-capped scores and logits, every
other layer with a window."""

from __future__ import annotations

from typing import Any

from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.family import Family
from naiad.llm.models.llama import read_activation
from naiad.llm.models.rope import read_rope


def read_config(raw: dict[str, Any]) -> DecoderConfig:
    num_layers = raw["num_hidden_layers"]
    head_dim = raw["head_dim"]
    window = raw.get("sliding_window") or 0
    kinds = raw.get("layer_types") or [
        "sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(num_layers)
    ]
    return DecoderConfig(
        model_type="gemma2",
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=num_layers,
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=head_dim,
        max_position_embeddings=raw.get("max_position_embeddings", 8192),
        rope=read_rope(raw, head_dim),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        norm_offset=1.0,
        has_post_norms=True,
        has_qkv_bias=bool(raw.get("attention_bias", False)),
        has_o_bias=bool(raw.get("attention_bias", False)),
        activation=read_activation(raw.get("hidden_activation") or "gelu_pytorch_tanh"),
        attention_scale=float(raw.get("query_pre_attn_scalar", head_dim)) ** -0.5,
        attention_softcap=raw.get("attn_logit_softcapping") or 0.0,
        logits_softcap=raw.get("final_logit_softcapping") or 0.0,
        sliding_windows=[window if kind == "sliding_attention" else 0 for kind in kinds],
        embedding_scale=raw["hidden_size"] ** 0.5,
        tie_embeddings=bool(raw.get("tie_word_embeddings", True)),
        eos_token_ids=read_eos(raw),
        bos_token_id=raw.get("bos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


FAMILY = Family(
    read_config=read_config,
    layer_prefix="model.layers.{}.",
    layer_names={
        "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "o": ["self_attn.o_proj"],
        "up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
        "input_norm": ["input_layernorm"],
        "post_attention_norm": ["post_attention_layernorm"],
        "mlp_norm": ["pre_feedforward_layernorm"],
        "post_mlp_norm": ["post_feedforward_layernorm"],
    },
    outer_names={"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
)
