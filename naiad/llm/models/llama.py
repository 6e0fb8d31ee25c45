"""Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen3: RMS norms, gated SiLU, one naming scheme; they
differ in values only."""

from __future__ import annotations

from typing import Any

from naiad.errors import unsupported
from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.decoder_config import Activation, DecoderConfig, NormKind
from naiad.llm.models.family import Family
from naiad.llm.models.rope import read_rope

ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu2": Activation.RELU2,
}


def read_activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise unsupported(
            f"activation '{name}' of the checkpoint is not known, "
            f"expected one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def read_config(raw: dict[str, Any]) -> DecoderConfig:
    kind = raw["model_type"]
    num_heads = raw["num_attention_heads"]
    head_dim = raw.get("head_dim") or raw["hidden_size"] // num_heads
    has_bias = bool(raw.get("attention_bias", False))
    return DecoderConfig(
        model_type=kind,
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=head_dim,
        max_position_embeddings=raw.get("max_position_embeddings", 2048),
        rope=read_rope(raw, head_dim),
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        qk_norm=NormKind.RMS if kind == "qwen3" else None,
        has_qkv_bias=kind == "qwen2" or has_bias,
        has_o_bias=kind != "qwen2" and has_bias,
        has_mlp_bias=bool(raw.get("mlp_bias", False)),
        activation=read_activation(raw.get("hidden_act", "silu")),
        attention_scale=head_dim**-0.5,
        sliding_windows=_windows(raw),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=read_eos(raw),
        bos_token_id=raw.get("bos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
    )


def _windows(raw: dict[str, Any]) -> list[int]:
    """Mistral's window applies to all layers, Qwen's only if it is enabled and from a certain layer
    on."""
    window, num_layers = raw.get("sliding_window"), raw["num_hidden_layers"]
    if not window:
        return []
    if raw["model_type"] == "mistral":
        return [window] * num_layers
    if not raw.get("use_sliding_window"):
        return []
    kinds = raw.get("layer_types")
    if kinds:
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    first = raw.get("max_window_layers", num_layers)
    return [window if layer >= first else 0 for layer in range(num_layers)]


FAMILY = Family(
    read_config=read_config,
    layer_prefix="model.layers.{}.",
    layer_names={
        "qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "o": ["self_attn.o_proj"],
        "up": ["mlp.gate_proj", "mlp.up_proj"],
        "down": ["mlp.down_proj"],
        "input_norm": ["input_layernorm"],
        "mlp_norm": ["post_attention_layernorm"],
        "q_norm": ["self_attn.q_norm"],
        "k_norm": ["self_attn.k_norm"],
    },
    outer_names={"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"},
)
