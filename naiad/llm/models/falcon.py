"""Falcon: attention and MLP side by side, plain GELU MLP, layer norms; 7B has one KV head, 40B and
180B ("new decoder") have groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from naiad.errors import unsupported
from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.decoder_config import DecoderConfig, NormKind
from naiad.llm.models.family import Family
from naiad.llm.models.llama import read_activation
from naiad.llm.models.rope import read_rope


def read_config(raw: dict[str, Any]) -> DecoderConfig:
    if raw.get("alibi"):
        raise unsupported(
            "Falcon checkpoints with alibi position biases are not supported, "
            "expected rotary positions"
        )
    num_heads, hidden = raw["num_attention_heads"], raw["hidden_size"]
    head_dim = hidden // num_heads
    is_new = bool(raw.get("new_decoder_architecture", False))
    is_parallel = is_new or bool(raw.get("parallel_attn", True))
    num_norms = raw.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
    return DecoderConfig(
        model_type="falcon",
        vocab_size=raw["vocab_size"],
        hidden_size=hidden,
        intermediate_size=raw.get("ffn_hidden_size") or 4 * hidden,
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(raw, is_new),
        head_dim=head_dim,
        max_position_embeddings=raw.get("max_position_embeddings", 2048),
        rope=read_rope(raw, head_dim),
        norm=NormKind.LAYER,
        norm_eps=raw.get("layer_norm_epsilon", 1e-5),
        has_qkv_bias=bool(raw.get("bias", False)),
        has_o_bias=bool(raw.get("bias", False)),
        has_mlp_bias=bool(raw.get("bias", False)),
        activation=read_activation(raw.get("activation", "gelu")),
        is_gated=False,
        is_parallel=is_parallel,
        has_mlp_norm=not is_parallel or num_norms == 2,
        attention_scale=head_dim**-0.5,
        tie_embeddings=bool(raw.get("tie_word_embeddings", True)),
        eos_token_ids=read_eos(raw),
        bos_token_id=raw.get("bos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


def _num_kv_heads(raw: dict[str, Any], is_new: bool) -> int:
    if is_new:
        return int(raw.get("num_kv_heads") or raw["num_attention_heads"])
    return 1 if raw.get("multi_query", True) else int(raw["num_attention_heads"])


def arrange_qkv(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Reorders the rows: the checkpoint keeps each KV head's queries, key and value together, and
    the result has all queries first, then keys, then values."""
    groups = rows.reshape(
        config.num_kv_heads, config.group_size + 2, config.head_dim, *rows.shape[1:]
    )
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return torch.cat([part.reshape(-1, *rows.shape[1:]) for part in parts])


FAMILY = Family(
    read_config=read_config,
    layer_prefix="transformer.h.{}.",
    layer_names={
        "qkv": ["self_attention.query_key_value"],
        "o": ["self_attention.dense"],
        "up": ["mlp.dense_h_to_4h"],
        "down": ["mlp.dense_4h_to_h"],
        "input_norm": ["input_layernorm|ln_attn"],
        "mlp_norm": ["ln_mlp|post_attention_layernorm"],
    },
    outer_names={
        "embedding": "transformer.word_embeddings",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
    arrange={"qkv": arrange_qkv},
)
