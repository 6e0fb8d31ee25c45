"""Counts the tokens of a text: exactly with a tokenizer.json, otherwise as an estimate.

The package `tokenizers` is imported only if --tokenizer is set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from naiad.settings.option import OptionError


class TokenCounter(Protocol):
    is_exact: bool

    def count(self, text: str) -> int: ...

    def cut(self, text: str, num_tokens: int) -> str:
        """Returns the beginning of the text with at most this many tokens."""


class WordCounter:
    """Counts words. A word of plain English is about one token in current vocabularies."""

    is_exact = False

    def count(self, text: str) -> int:
        return len(text.split())

    def cut(self, text: str, num_tokens: int) -> str:
        return " ".join(text.split()[:num_tokens])


class FileTokenizer:
    is_exact = True

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise OptionError(f"--tokenizer: {file} is not a file")
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise OptionError(
                "--tokenizer needs the package 'tokenizers': pip install tokenizers"
            ) from None
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:
            raise OptionError(f"--tokenizer: {file} cannot be read: {error}") from None

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def cut(self, text: str, num_tokens: int) -> str:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= num_tokens else text[: offsets[num_tokens][0]]


def token_counter(path: str) -> TokenCounter:
    return FileTokenizer(Path(path)) if path else WordCounter()
