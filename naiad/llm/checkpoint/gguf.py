"""A GGUF file as a checkpoint: its keys -> DecoderConfig, its tensors under Hugging Face's names,
its tokenizer.

Architectures llama, qwen2 and qwen3. llama's query and key rows are stored for pairwise rotation
and are put back for rotation in halves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.dequantize import dequantize
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from naiad.llm.models import llama
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.family import Family
from naiad.llm.text.tokenizer import Tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


class GgufSource:
    def __init__(self, file: GgufFile, config: DecoderConfig, is_permuted: bool) -> None:
        self._file = file
        self._config = config
        self._is_permuted = is_permuted
        self._names = _hugging_face_names(file, config.num_layers)

    def names(self) -> set[str]:
        return set(self._names)

    @property
    def is_wide(self) -> bool:
        """Some matrix is in float32: float16 would lose what the file has."""
        return any(
            entry.kind == "F32" and len(entry.shape) > 1 for entry in self._file.tensors.values()
        )

    def get(self, name: str) -> Tensor:
        entry = self._file.tensors[self._names[name]]
        values = dequantize(entry.kind, self._file.raw(entry), entry.shape)
        if self._is_permuted and ".q_proj." in name:
            values = _unpermute(values, self._config.num_heads)
        elif self._is_permuted and ".k_proj." in name:
            values = _unpermute(values, self._config.num_kv_heads)
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))


class GgufCheckpoint(msgspec.Struct, frozen=True):
    config: DecoderConfig
    family: Family
    source: GgufSource
    tokenizer: Tokenizer
    chat_template: str | None
    special_tokens: dict[str, str]
    """bos_token and eos_token, which chat templates name."""


def open_gguf(path: Path) -> GgufCheckpoint:
    file = GgufFile(path)
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise unsupported(
            f"'{path.name}' holds architecture '{architecture}', expected one of {', '.join(ARCHITECTURES)}"
        )
    config = llama.read_config(_as_config_json(file, architecture))
    source = GgufSource(file, config, architecture == "llama")
    template = file.metadata.get("tokenizer.chat_template")
    return GgufCheckpoint(
        config,
        llama.FAMILY,
        source,
        build_tokenizer(file.metadata),
        template,
        _special_tokens(file.metadata),
    )


def _special_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return {
        f"{name}_token": tokens[token]
        for name, token in ids.items()
        if isinstance(token, int) and token < len(tokens)
    }


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


def _hugging_face_names(file: GgufFile, num_layers: int) -> dict[str, str]:
    wanted = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in OUTER.items()}
    for layer in range(num_layers):
        for ours, theirs in LAYER.items():
            for kind in ("weight", "bias"):
                wanted[f"model.layers.{layer}.{ours}.{kind}"] = f"blk.{layer}.{theirs}.{kind}"
    return {ours: theirs for ours, theirs in wanted.items() if theirs in file.tensors}


def _unpermute(
    values: np.ndarray[Any, np.dtype[np.float32]], num_heads: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Rows of each head: pairs side by side -> first halves, then second halves."""
    pairs = values.reshape(num_heads, values.shape[0] // num_heads // 2, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)
