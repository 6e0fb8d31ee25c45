"""A tiny GGUF file with random weights that OpenVINO can read, too: its reader wants keys that ours
can do without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

for needed in ("torch", "transformers", "gguf"):
    pytest.importorskip(needed, reason=f"needs {needed} to write test files")

from tests.unit.llm import test_gguf, tokenizers_made

CHAT_TEMPLATE = "{{ messages[0].content }}"


def write(path: Path, **values: Any) -> Path:
    write_model(path, test_gguf.tiny("Llama", **{"hidden_size": 128, **values}), "llama", ["F16"])
    return path


def write_model(path: Path, model: Any, architecture: str, kinds: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_gguf, "add_tokenizer", _with_more_keys(test_gguf.add_tokenizer))
        test_gguf.write_gguf(path, model, architecture, kinds)


def _with_more_keys(add_tokenizer: Callable[[Any], None]) -> Callable[[Any], None]:
    def add(writer: Any) -> None:
        add_tokenizer(writer)
        end = tokenizers_made.byte_level(400).token_to_id("<|end|>")
        for put in (writer.add_bos_token_id, writer.add_pad_token_id, writer.add_unk_token_id):
            put(end)
        writer.add_file_type(1)
        writer.add_rope_dimension_count(32)
        writer.add_vocab_size(test_gguf.VOCAB)
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHAT_TEMPLATE)

    return add
