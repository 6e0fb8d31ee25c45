"""A Hugging Face folder, or one of TensorRT-LLM's tools: config.json, generation_config.json,
tokenizer.json and where its weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from naiad.errors import invalid_arg
from naiad.files.regular_file import read_json_object, require_regular
from naiad.llm.checkpoint.end_tokens import read_eos
from naiad.llm.models.tensorrt_llm import as_hugging_face, is_tensorrt_llm, num_rank_files
from naiad.llm.text.tokenizer import Tokenizer


class CheckpointFolder(msgspec.Struct, frozen=True):
    path: Path
    config: dict[str, Any]
    eos_token_ids: list[int]
    """generation_config.json's where it has them: chat checkpoints end on more tokens than
    config.json says."""
    is_tensorrt_llm: bool = False
    """Its tensors have TensorRT-LLM's names; `config` is put into Hugging Face's words."""
    num_rank_files: int = 1
    """Above 1 if TensorRT-LLM's tools have split the tensors over files, one per rank."""


def open_folder(path: Path) -> CheckpointFolder:
    owner = f"checkpoint '{path.name}'"
    config = read_json_object(path / "config.json", owner)
    is_other = is_tensorrt_llm(config)
    num_files = num_rank_files(config) if is_other else 1
    if is_other:
        config = as_hugging_face(config)
    if not isinstance(config.get("model_type"), str):
        raise invalid_arg(f"config.json of checkpoint '{path.name}' has no model_type")
    generation_path = path / "generation_config.json"
    generation = read_json_object(generation_path, owner) if generation_path.exists() else {}
    eos = read_eos(generation) or read_eos(config)
    return CheckpointFolder(path, config, eos, is_other, num_files)


def read_tokenizer(folder: CheckpointFolder) -> Tokenizer | None:
    """Returns None if the folder has none; the engine then accepts and returns only token ids."""
    path = folder.path / "tokenizer.json"
    if not path.exists():
        return None
    require_regular(path, f"checkpoint '{folder.path.name}'")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exceptions
        raise invalid_arg(
            f"tokenizer.json of checkpoint '{folder.path.name}' cannot be read: {error}"
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(backend, folder.eos_token_ids, folder.config.get("bos_token_id"))
