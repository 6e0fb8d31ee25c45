"""Recognises compiled engines among checkpoints by their files, without loading anything.

In:  a path. Out: the path itself, or the original checkpoint of a TensorRT-LLM engine if the
     repository names it. An engine that cannot be replaced, and what is no language model, is an
     error that says what to do.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from naiad.backends.llm.other_kind import refuse_other_kind
from naiad.errors import NaiadError, invalid_arg
from naiad.files.regular_file import read_json_object

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER_DIR = re.compile(
    r'key\s*:\s*"tokenizer_dir"[\s,;]*value\s*:?\s*\{\s*string_value\s*:\s*"([^"]*)"'
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_compiled_engine(path: Path) -> bool:
    """Whether this is the output of trtllm-build: rank0.engine and a config.json of its own."""
    return path.suffix == ".engine" or (path.is_dir() and any(path.glob("*.engine")))


def is_original(path: Path) -> bool:
    """Whether this is a checkpoint that an engine of ours can try to open."""
    if path.suffix == ".gguf":
        return path.is_file()
    if not path.is_dir() or is_compiled_engine(path):
        return False
    has_weights = any(next(path.glob(pattern), None) is not None for pattern in _WEIGHTS)
    return "model_type" in _read_config(path) and has_weights


def readable_checkpoint(path: Path, repository: Path | None = None) -> Path:
    """The path itself; for a TensorRT-LLM engine the checkpoint that it was built from, where
    `tokenizer_dir` of the models of its repository names exactly one. Raises NaiadError."""
    if is_compiled_engine(path):
        return _original_of(path, _tokenizer_dirs(repository) if repository else {})
    if path.suffix == ".plan":
        raise invalid_arg(
            f"'{path.name}' is a TensorRT engine, which only TensorRT can run: give the model that "
            "it was built from"
        )
    refuse_other_kind(path)
    return path


def num_engine_ranks(path: Path) -> int:
    """Returns for how many GPUs a TensorRT-LLM engine was built."""
    config = _read_config(path if path.is_dir() else path.parent)
    mapping = (config.get("pretrained_config") or {}).get("mapping") or {}
    return int(mapping.get("tp_size") or 1)


def _original_of(engine: Path, tokenizer_dirs: dict[str, str]) -> Path:
    named = {model: Path(text) for model, text in tokenizer_dirs.items() if is_original(Path(text))}
    originals = {path.resolve() for path in named.values()}
    if len(originals) == 1:
        return originals.pop()
    hub = [model for model, text in tokenizer_dirs.items() if _HUB_ID.fullmatch(text)]
    hint = ""
    if named:
        models = " and ".join(f"{model}'s" for model in sorted(named))
        hint = f"; {models} tokenizer_dir name different ones"
    elif hub:
        hint = f"; {hub[0]}'s tokenizer_dir names one"
    raise invalid_arg(
        f"'{engine.name}' is a TensorRT-LLM engine, which only TensorRT-LLM can run: point "
        f"engine_dir at the original checkpoint{hint}"
    )


def _tokenizer_dirs(repository: Path) -> dict[str, str]:
    """Model -> its `tokenizer_dir`, as the config says it."""
    found: dict[str, str] = {}
    for config in sorted(repository.glob("*/config.pbtxt")):
        try:
            text = config.read_text(errors="replace")
        except OSError:
            continue
        for name in _TOKENIZER_DIR.findall(text):
            if name:
                found[config.parent.name] = name
    return found


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path / "config.json", path.name)
    except (OSError, NaiadError, ValueError):
        return {}
