"""A GGUF file as a checkpoint of the native engine: its config, its tensors under Hugging Face's
names, its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from naiad.llm.checkpoint.dequantize import dequantize
from naiad.llm.checkpoint.gguf_config import hugging_face_names, read_gguf_config, stored_rows
from naiad.llm.checkpoint.gguf_file import GgufFile
from naiad.llm.checkpoint.gguf_tokenizer import build_tokenizer
from naiad.llm.models import llama
from naiad.llm.models.decoder_config import DecoderConfig
from naiad.llm.models.family import Family
from naiad.llm.text.tokenizer import Tokenizer


class GgufSource:
    def __init__(self, file: GgufFile, config: DecoderConfig) -> None:
        self._file = file
        self._config = config
        self._names = hugging_face_names(file, config.num_layers)

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
        rows = stored_rows(self._config, name)
        if rows is not None:
            values = values[rows]
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
    config = read_gguf_config(file, path)
    source = GgufSource(file, config)
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
