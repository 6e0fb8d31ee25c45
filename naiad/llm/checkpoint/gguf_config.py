"""The keys of a GGUF file -> DecoderConfig, and its tensors' names as Hugging Face writes them.
Needs no torch.

Architectures llama, qwen2 and qwen3. llama's query and key rows are stored for pairwise rotation:
`stored_rows` puts them back for rotation in halves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.dequantize import dequantize
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.models import llama
from naiad.llm.models.decoder_config import DecoderConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def read_gguf_config(file: GgufFile, path: Path) -> DecoderConfig:
    """Raises NaiadError."""
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise unsupported(
            f"'{path.name}' holds architecture '{architecture}', expected one of "
            f"{', '.join(ARCHITECTURES)}"
        )
    return llama.FAMILY.checked_config(_as_config_json(file, architecture), f"'{path.name}'")


def stored_rows(config: DecoderConfig, name: str) -> NDArray[np.intp] | None:
    """Where the rows of a tensor of this name lie in the file; None where they lie in order."""
    if config.model_type != "llama" or not (".q_proj." in name or ".k_proj." in name):
        return None
    num_heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
    # Of each head: pairs side by side -> first halves, then second halves.
    pairs = np.arange(num_heads * config.head_dim).reshape(num_heads, config.head_dim // 2, 2)
    return pairs.swapaxes(1, 2).reshape(-1)


def _as_config_json(file: GgufFile, architecture: str) -> dict[str, Any]:
    def need(key: str) -> Any:
        value = file.metadata.get(f"{architecture}.{key}")
        if value is None:
            raise invalid_arg(f"the GGUF file has no {architecture}.{key}")
        return value

    def find(key: str, default: Any = None) -> Any:
        return file.metadata.get(f"{architecture}.{key}", default)

    return {
        "model_type": architecture,
        "vocab_size": file.tensors["token_embd.weight"].shape[0]
        if "token_embd.weight" in file.tensors
        else 0,
        "hidden_size": need("embedding_length"),
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": need("attention.head_count"),
        "num_key_value_heads": find("attention.head_count_kv"),
        "head_dim": find("attention.key_length"),
        "max_position_embeddings": find("context_length", 2048),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(file, find),
        "attention_bias": architecture != "qwen2" and "blk.0.attn_q.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
    }


def _rope(file: GgufFile, find: Any) -> dict[str, Any]:
    theta = find("rope.freq_base", 10000.0)
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None:  # Llama 3.1 on: the converter has worked its scaling out per frequency
        values = dequantize(factors.kind, file.raw(factors), factors.shape)
        return {"rope_type": "factors", "rope_theta": theta, "factors": values.tolist()}
    kind = find("rope.scaling.type", "none")
    if kind in ("none", None):
        return {"rope_type": "default", "rope_theta": theta}
    return {
        "rope_type": kind,
        "rope_theta": theta,
        "factor": find("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": find("rope.scaling.original_context_length"),
    }


def hugging_face_names(file: GgufFile, num_layers: int) -> dict[str, str]:
    wanted = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in OUTER.items()}
    for layer in range(num_layers):
        for ours, theirs in LAYER.items():
            for kind in ("weight", "bias"):
                wanted[f"model.layers.{layer}.{ours}.{kind}"] = f"blk.{layer}.{theirs}.{kind}"
    return {ours: theirs for ours, theirs in wanted.items() if theirs in file.tensors}
