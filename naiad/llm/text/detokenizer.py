"""Decodes the tokens of one completion into text, piece by piece, never half a character.

In:  token ids as they are chosen. Out: the text that is certain so far; `finish` returns the rest.
Rule: the pieces joined equal the text of all tokens decoded at once, unless bytes are no UTF-8.
      tests/unit/llm/text/test_detokenizer.py checks this with random tokens.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from naiad.llm.text.sentence_piece import PieceTable
    from naiad.llm.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
NUM_CONTEXT_TOKENS = 8


class Detokenizer(Protocol):
    def append(self, token: int) -> str: ...

    def finish(self) -> str: ...


class ByteLevelDetokenizer:
    """Decodes tokens that are each a fixed run of bytes: one table look-up and an incremental UTF-8
    decoder."""

    def __init__(self, table: Mapping[int, bytes]) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, token: int) -> str:
        return self._decoder.decode(self._table[token])

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class PieceDetokenizer:
    """Decodes tokens that are each a fixed text or one byte, as SentencePiece has them: one table
    look-up. Bytes are kept until they are a character; what cannot become one is a replacement
    character per byte."""

    def __init__(self, table: PieceTable, skip_special_tokens: bool, is_beginning: bool) -> None:
        self._pieces = table.pieces(skip_special_tokens)
        self._is_stripping = is_beginning and table.is_stripped
        self._bytes = b""

    def append(self, token: int) -> str:
        piece = self._pieces[token]
        if piece is None:
            return ""
        if isinstance(piece, bytes):
            return self._append_byte(piece)
        if self._bytes:
            piece = self._broken() + piece
        return self._stripped(piece) if self._is_stripping and piece else piece

    def _append_byte(self, byte: bytes) -> str:
        self._bytes += byte
        try:
            text = self._bytes.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = REPLACEMENT * len(self._bytes)
        self._bytes = b""
        return self._stripped(text) if self._is_stripping else text

    def _broken(self) -> str:
        count, self._bytes = len(self._bytes), b""
        return REPLACEMENT * count

    def _stripped(self, text: str) -> str:
        self._is_stripping = False
        return text.removeprefix(" ")

    def finish(self) -> str:
        return self._broken()


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
        return ByteLevelDetokenizer(tokenizer.bytes_table(skip_special_tokens))

    def decode(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens)

    if tokenizer.pieces is None:
        return WindowDetokenizer(decode, prompt)
    return PieceDetokenizer(
        tokenizer.pieces, skip_special_tokens, is_beginning=not _clean_ending(decode, prompt)
    )
