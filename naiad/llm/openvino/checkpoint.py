"""What the OpenVINO engine must know of a checkpoint beforehand: tokenizer, context, how much
memory a token takes in its KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from naiad.errors import invalid_arg
from naiad.llm.checkpoint.folder import open_folder, read_tokenizer
from naiad.llm.checkpoint.gguf_config import read_gguf_config
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.family import check_sizes
from naiad.llm.text.tokenizer import Tokenizer

DEFAULT_CONTEXT = 4096
KV_ELEMENT_BYTES = 2
"""float16, because EXACT in engine.py asks for it."""


class OpenvinoCheckpoint(msgspec.Struct, frozen=True):
    tokenizer: Tokenizer
    max_position_embeddings: int
    kv_bytes_per_token: int
    gguf: tuple[GgufFile, DecoderConfig] | None = None
    """What there is to convert; None for a folder."""


def read_checkpoint(path: Path) -> OpenvinoCheckpoint:
    """Raises NaiadError."""
    return _read_gguf(path) if path.is_file() else _read_folder(path)


def _read_gguf(path: Path) -> OpenvinoCheckpoint:
    file = GgufFile(path)
    config = read_gguf_config(file, path)
    kv_bytes = _kv_bytes(config.num_layers, config.num_kv_heads, config.head_dim)
    return OpenvinoCheckpoint(
        build_tokenizer(file.metadata), config.max_position_embeddings, kv_bytes, (file, config)
    )


def _read_folder(path: Path) -> OpenvinoCheckpoint:
    folder = open_folder(path)
    tokenizer = read_tokenizer(folder)
    if tokenizer is None:
        raise invalid_arg(f"checkpoint '{path.name}' has no tokenizer.json")
    source = f"config.json of checkpoint '{path.name}'"
    check_sizes(folder.config, source)
    try:
        kv_bytes = _folder_kv_bytes(folder.config)
    except KeyError as error:
        raise invalid_arg(f"{source} has no {error.args[0]}") from error
    context = folder.config.get("max_position_embeddings") or DEFAULT_CONTEXT
    return OpenvinoCheckpoint(tokenizer, context, kv_bytes)


def _folder_kv_bytes(config: dict[str, Any]) -> int:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return _kv_bytes(config["num_hidden_layers"], kv_heads, head_dim)


def _kv_bytes(layers: int, kv_heads: int, head_dim: int) -> int:
    return layers * 2 * kv_heads * head_dim * KV_ELEMENT_BYTES
