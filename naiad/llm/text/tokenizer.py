"""Converts text to tokens and back, with the checkpoint's own `tokenizers` file.

In:  a tokenizers.Tokenizer, read from tokenizer.json or built from a GGUF file.
Out: ids, text, and the bytes of a token if they are well defined.
Rule: nothing here knows of templates or requests.
"""

from __future__ import annotations

import os
from hashlib import sha256

import tokenizers

from naiad.llm.text.sentence_piece import read_pieces

# A pool of threads of its own would compete with the engine's for the same cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

PROBE = "The quick brown fox: 1234 naïve, 東京 😀\n\t  don't <|end|></s> Größe \u00a0x"
NUM_PROBED_WORDS = 500


def _byte_of_character() -> dict[str, int]:
    """Returns the byte-level alphabet: printable bytes are themselves, the others are characters
    from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


BYTE_OF = _byte_of_character()
"""A character of a byte-level tokenizer's words -> the byte that it stands for."""


class TokenBytes(dict[int, bytes]):
    """Token -> its bytes, filled as tokens are looked up."""

    def __init__(self, backend: tokenizers.Tokenizer, left_out: frozenset[int]) -> None:
        super().__init__()
        self._backend = backend
        self._left_out = left_out

    def __missing__(self, token: int) -> bytes:
        data = self[token] = self._read(token)
        return data

    def _read(self, token: int) -> bytes:
        word = None if token in self._left_out else self._backend.id_to_token(token)
        if word is None:
            return b""
        try:
            return bytes(BYTE_OF[character] for character in word)
        except KeyError:  # an added token is its own text
            data: bytes = word.encode()
            return data


class Tokenizer:
    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_token_ids: list[int],
        bos_token_id: int | None = None,
    ) -> None:
        self.backend = backend
        self.eos_token_ids = eos_token_ids
        self.bos_token_id = bos_token_id
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        special = {token: entry.content for token, entry in added.items() if entry.special}
        self.special_token_ids = frozenset(special)
        self.special_texts = frozenset(special.values())
        self.is_byte_level = isinstance(backend.decoder, tokenizers.decoders.ByteLevel)
        self.pieces = None if self.is_byte_level else read_pieces(backend, self.special_token_ids)
        """None if tokens cannot be decoded one by one."""
        self._bytes = TokenBytes(backend, frozenset())
        self._text_bytes = TokenBytes(backend, self.special_token_ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Releases the interpreter while it works: the library does so for batches only."""
        encodings = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encodings[0].ids
        return ids

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        """Encodes short texts without special tokens, in one call."""
        encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        text: str = self.backend.decode(tokens, skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of a token of a byte-level tokenizer. Ids beyond the vocabulary (padded
        embeddings) are empty, as in `decode`."""
        return self._bytes[token]

    def bytes_table(self, skip_special_tokens: bool) -> TokenBytes:
        """Returns the bytes of all tokens of a byte-level tokenizer."""
        return self._text_bytes if skip_special_tokens else self._bytes

    def fingerprint(self) -> str:
        """Two tokenizers with the same fingerprint are taken for the same: they have some hundred
        words and the tokens of a text in common."""
        step = 1 + self.vocab_size // NUM_PROBED_WORDS
        words = [self.backend.id_to_token(token) for token in range(0, self.vocab_size, step)]
        facts = (self.vocab_size, words, self.encode(PROBE))
        return sha256(repr(facts).encode()).hexdigest()
