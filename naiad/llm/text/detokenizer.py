"""Decodes the tokens of one completion into text, piece by piece, never half a character.

In:  token ids as they are chosen. Out: the text that is certain so far; `finish` returns the rest.
Rule: the pieces joined equal the text of all tokens decoded at once.
      tests/unit/llm/text/test_detokenizer.py checks this with random tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from naiad.llm.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
NUM_CONTEXT_TOKENS = 8


class Detokenizer(Protocol):
    def append(self, token: int) -> str: ...

    def finish(self) -> str: ...


class ByteLevelDetokenizer:
    """Decodes tokens that are each a fixed run of bytes: one table look-up and an incremental UTF-8
    decoder."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, token: int) -> str:
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """Decodes all other tokens: a small window twice, without and with the new tokens, and returns
    the difference.

    The window begins with the tokens of the last piece, so it never begins inside a character.
    Before the first piece it begins with the end of the prompt, so that a leading space is kept
    when the completion continues the prompt's text.
    """

    def __init__(self, decode: Callable[[list[int]], str], prompt: list[int]) -> None:
        self._decode = decode
        self._tokens = _clean_ending(decode, prompt)
        self._num_read = len(self._tokens)
        """Number of tokens at the beginning of the window whose text was already returned."""

    def append(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(REPLACEMENT):
            return ""
        known = self._decode(self._tokens[: self._num_read])
        if len(text) <= len(known):
            return ""
        del self._tokens[: self._num_read]
        self._num_read = len(self._tokens)
        return text[len(known) :]

    def finish(self) -> str:
        return self._decode(self._tokens)[len(self._decode(self._tokens[: self._num_read])) :]


def _clean_ending(decode: Callable[[list[int]], str], prompt: list[int]) -> list[int]:
    """Returns the shortest end of the prompt that is text by itself."""
    for count in range(1, NUM_CONTEXT_TOKENS + 1):
        text = decode(prompt[-count:])
        if text and REPLACEMENT not in text:
            return prompt[-count:]
    return []


def build_detokenizer(
    tokenizer: Tokenizer, prompt: list[int], skip_special_tokens: bool
) -> Detokenizer:
    if tokenizer.is_byte_level:
        return ByteLevelDetokenizer(
            tokenizer.text_token_bytes if skip_special_tokens else tokenizer.token_bytes
        )
    return WindowDetokenizer(lambda tokens: tokenizer.decode(tokens, skip_special_tokens), prompt)
