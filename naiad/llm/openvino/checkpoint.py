"""What the OpenVINO engine must know of a checkpoint beforehand: tokenizer, context, how much
memory a token takes in its KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import invalid_arg, unsupported
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from naiad.llm.text.tokenizer import Tokenizer

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")
BYTES_PER_HEAD_OVERHEAD = 12
"""Scales and zero points beside the eight-bit values, as the CPU plugin lays its cache out."""


class OpenvinoCheckpoint(msgspec.Struct, frozen=True):
    tokenizer: Tokenizer
    max_position_embeddings: int
    kv_bytes_per_token: int


def read_checkpoint(path: Path) -> OpenvinoCheckpoint:
    """Raises NaiadError."""
    return _read_gguf(path) if path.is_file() else _read_folder(path)


def _read_gguf(path: Path) -> OpenvinoCheckpoint:
    metadata = GgufFile(path).metadata
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise unsupported(
            f"'{path.name}' is of architecture '{architecture}', OpenVINO reads {', '.join(GGUF_ARCHITECTURES)}"
        )

    def number(key: str, default: int | None = None) -> int:
        value = metadata.get(f"{architecture}.{key}", default)
        if not isinstance(value, int):
            raise invalid_arg(f"'{path.name}' has no {architecture}.{key}")
        return value

    heads = number("attention.head_count")
    head_dim = number("attention.key_length", number("embedding_length") // heads)
    kv_bytes = _kv_bytes(number("block_count"), number("attention.head_count_kv", heads), head_dim)
    return OpenvinoCheckpoint(build_tokenizer(metadata), number("context_length"), kv_bytes)


def _read_folder(path: Path) -> OpenvinoCheckpoint:
    folder = open_folder(path)
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise invalid_arg(f"checkpoint '{path.name}' has no tokenizer.json")
    config: dict[str, Any] = folder.config
    heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
    kv_bytes = _kv_bytes(
        int(config["num_hidden_layers"]), int(config.get("num_key_value_heads") or heads), head_dim
    )
    return OpenvinoCheckpoint(tokenizer, int(config.get("max_position_embeddings", 4096)), kv_bytes)


def _kv_bytes(layers: int, kv_heads: int, head_dim: int) -> int:
    return layers * 2 * kv_heads * (head_dim + BYTES_PER_HEAD_OVERHEAD)
