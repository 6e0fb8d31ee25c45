"""Checkpoints that TensorRT-LLM's tools write: Llama's layers under other names, and a config.json
of its own.

In:  config.json with `architecture`. Out: the same as Hugging Face would write it, and the names of
     the tensors.
"""

from __future__ import annotations

from typing import Any

from naiad.errors import invalid_arg, unsupported
from naiad.llm.models import llama
from naiad.llm.models.family import Family

MODEL_TYPES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2",
    "QWenForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}  # fmt: skip
FAMILY = Family(
    read_config=llama.read_config,
    layer_prefix="transformer.layers.{}.",
    layer_names={
        "qkv": ["attention.qkv"],
        "o": ["attention.dense"],
        # What goes through the activation is called fc, what it is multiplied by gate.
        "up": ["mlp.fc", "mlp.gate"],
        "down": ["mlp.proj"],
        "input_norm": ["input_layernorm"],
        "mlp_norm": ["post_layernorm"],
        "q_norm": ["attention.q_layernorm"],
        "k_norm": ["attention.k_layernorm"],
    },
    outer_names={
        "embedding": "transformer.vocab_embedding",
        "final_norm": "transformer.ln_f",
        "head": "lm_head",
    },
)


def is_tensorrt_llm(raw: dict[str, Any]) -> bool:
    return "architecture" in raw and "model_type" not in raw


def num_rank_files(raw: dict[str, Any]) -> int:
    """Returns over how many files, rank0.safetensors and so on, the tensors are split. Raises
    NaiadError."""
    size = _object(raw, "mapping").get("tp_size") or 1
    if not isinstance(size, int) or size < 1:
        raise invalid_arg("config.json of the TensorRT-LLM checkpoint has a tp_size below 1")
    return size


def as_hugging_face(raw: dict[str, Any]) -> dict[str, Any]:
    """Raises NaiadError."""
    architecture = raw["architecture"]
    if not isinstance(architecture, str) or architecture not in MODEL_TYPES:
        raise unsupported(
            f"architecture '{architecture}' of a TensorRT-LLM checkpoint, expected one of "
            f"{', '.join(MODEL_TYPES)}"
        )
    world_size = _object(raw, "mapping").get("world_size", 1)
    if world_size != num_rank_files(raw):
        raise unsupported(
            f"the TensorRT-LLM checkpoint has {world_size} ranks and a tp_size of "
            f"{num_rank_files(raw)}; expected tensor parallelism alone (pp_size and cp_size 1)"
        )
    missing = [
        name
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        if name not in raw
    ]
    if missing:
        raise invalid_arg(f"config.json of the TensorRT-LLM checkpoint has no {missing[0]}")
    quantization = _object(raw, "quantization")
    config = {
        "model_type": MODEL_TYPES[architecture],
        "vocab_size": raw["vocab_size"],
        "hidden_size": raw["hidden_size"],
        "intermediate_size": raw.get("intermediate_size"),
        "num_hidden_layers": raw["num_hidden_layers"],
        "num_attention_heads": raw["num_attention_heads"],
        "num_key_value_heads": raw.get("num_key_value_heads"),
        "head_dim": raw.get("head_size"),
        "max_position_embeddings": raw.get("max_position_embeddings") or 2048,
        "rms_norm_eps": raw.get("norm_epsilon", 1e-5),
        "rope_theta": raw.get("rotary_base", 10000.0),
        "rope_scaling": raw.get("rotary_scaling"),
        "attention_bias": bool(raw.get("attn_bias", False)),
        "hidden_act": "silu",
        "tie_word_embeddings": bool(
            raw.get("share_embedding_table") or raw.get("use_share_embedding_table")
        ),
        "dtype": raw.get("dtype", "float16"),
    }
    if quantization.get("quant_algo"):
        config["quantization_config"] = {"quant_method": "tensorrt_llm", **quantization}
    return config


def _object(raw: dict[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name) or {}
    if not isinstance(value, dict):
        raise invalid_arg(
            f"config.json of the TensorRT-LLM checkpoint has a {name} that is not an object"
        )
    return value
