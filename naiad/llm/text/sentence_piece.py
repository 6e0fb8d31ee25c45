"""The texts of single tokens of a SentencePiece-like tokenizer, so that a completion is decoded by
looking up each of its tokens.

In:  the checkpoint's `tokenizers` object. Out: a PieceTable, or None if its decoder does something
     else, or if the table does not agree with it.
Rule: the decoder is Replace "▁", ByteFallback, Fuse and perhaps Strip of one leading space, as
      Llama 2, Mistral, Gemma and GGUF files have it. Of these only the last looks at more than one
      token, or at more than one run of bytes.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any, TypeAlias

import tokenizers

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STEPS = [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
NUM_PROBES = 16
PROBE_LENGTH = 32

Piece: TypeAlias = str | bytes | None
"""Text, one byte of a character, or None for a token that is left out."""


class Pieces(dict[int, Piece]):
    """Token -> piece, filled as tokens are looked up."""

    def __init__(self, backend: tokenizers.Tokenizer, left_out: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._left_out = left_out

    def __missing__(self, token: int) -> Piece:
        piece = self[token] = self._read(token)
        return piece

    def _read(self, token: int) -> Piece:
        word = None if token in self._left_out else self._backend.id_to_token(token)
        if word is None:
            return None
        text: str = word.replace("▁", " ")
        byte = BYTE_TOKEN.fullmatch(text)
        return text if byte is None else bytes([int(byte[1], 16)])


class PieceTable:
    def __init__(
        self, backend: tokenizers.Tokenizer, special_token_ids: frozenset[int], is_stripped: bool
    ) -> None:
        self.is_stripped = is_stripped
        """A text loses its first character if that is a space."""
        self._all = Pieces(backend, frozenset())
        self._without_special = Pieces(backend, special_token_ids)

    def pieces(self, skip_special_tokens: bool) -> Pieces:
        return self._without_special if skip_special_tokens else self._all


def read_pieces(
    backend: tokenizers.Tokenizer, special_token_ids: frozenset[int]
) -> PieceTable | None:
    if backend.decoder is None:
        return None
    description: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = description.get("decoders")
    if steps not in (STEPS, [*STEPS, STRIP]):
        return None
    table = PieceTable(backend, special_token_ids, is_stripped=steps[-1] == STRIP)
    return table if _agrees(backend, table) else None


def _agrees(backend: tokenizers.Tokenizer, table: PieceTable) -> bool:
    """Compares both with random tokens, of which runs of bytes are left out: the decoder reads a
    run as a whole."""
    source = random.Random(0)
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    for skip_special_tokens in (True, False):
        pieces = table.pieces(skip_special_tokens)
        for _ in range(NUM_PROBES):
            tokens = [
                token
                for token in (source.randrange(vocab_size) for _ in range(PROBE_LENGTH))
                if not isinstance(pieces[token], bytes)
            ]
            text = "".join(str(pieces[token] or "") for token in tokens)
            if table.is_stripped:
                text = text.removeprefix(" ")
            if text != backend.decode(tokens, skip_special_tokens=skip_special_tokens):
                return False
    return True
