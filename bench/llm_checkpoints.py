"""Writes checkpoints without weights, for `load_format: dummy`.

A checkpoint has the config.json of a shape and a made-up tokenizer of the right vocabulary size. A
digit is one token, and no longer token contains a digit, so a prompt of n digits has n tokens.
"""

from __future__ import annotations

import json
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any


def write_checkpoint(folder: Path, shape: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(int(shape["vocab_size"]))))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "!"})
    )
    return folder


def _tokenizer(vocab_size: int) -> dict[str, Any]:
    pairs = ["".join(pair) for pair in product(ascii_lowercase, repeat=2)]
    words = (left + right for left, right in product(pairs, repeat=2))
    vocabulary = [*_byte_alphabet(), *pairs][:vocab_size]
    vocabulary += islice(words, vocab_size - len(vocabulary))
    merges = [[word[: len(word) // 2], word[len(word) // 2 :]] for word in vocabulary[256:]]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "merges": merges,
            "vocab": {word: index for index, word in enumerate(vocabulary)},
        },
    }  # fmt: skip


def _byte_alphabet() -> list[str]:
    """Returns the character that byte-level tokenizers use for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def write_model(
    repository: Path, name: str, checkpoint: Path, parameters: dict[str, object]
) -> None:
    values = {"checkpoint": checkpoint.resolve(), "load_format": "dummy", **parameters}
    lines = [
        f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
        for key, value in values.items()
    ]
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("\n".join(['backend: "llm"', *lines, ""]))
