"""A faster way to the same tokens: tiktoken for byte-level BPE, once it is proven to agree with the
checkpoint's own tokenizer.

In:  the checkpoint's Tokenizer. Out: a FastTokenizer, or the reason why there is none.
Rules: only what is known to mean the same in both libraries is tried: `describe` refuses every
       other pre-tokenizer, normalizer and added token. `prove` then compares both with every token
       of the vocabulary and with texts that are hard to split. A text for which the fast one is not
       certain goes to the checkpoint's own.

Why the vocabulary is enough for the merges: tiktoken joins two tokens whenever the result is a
token, the lowest id first; the checkpoint joins listed pairs, the first in the list first.
`describe` checks that both orders are the same. Two tokens that are a token together, but not a
listed pair, can only meet where the bytes of that token do not become the token, and `prove` finds
those.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import tiktoken
from numpy.typing import NDArray

from naiad.llm.text.tokenizer import BYTE_OF, Tokenizer

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel does by itself."""
DIGITS_SPLIT = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
"""The same after every digit has become a piece of its own, which ends the run of spaces before
it."""
KNOWN_SYNTAX = re.compile(
    r"(?:\\[pP]\{(?:L|N|M|Lu|Lt|Lm|Lo|Ll)\}|\\[srnSt/]|\(\?i:|\(\?!|\(\?:|\{\d+,?\d*\}"
    r"|[-A-Za-z0-9'\s|()\[\]^?+*/])*"
)
"""The parts of expressions that both libraries read alike."""
WORDS_PER_SLICE = 1000
LINES_PER_SLICE = 256
NUM_RANDOM_TEXTS = 200


class UnsupportedError(Exception):
    """The message says what tiktoken cannot do, or where it disagrees."""


class Description(msgspec.Struct, frozen=True):
    """What tiktoken needs to know, in its words: a rank is the id of a token."""

    split: str
    ranks: dict[bytes, int]
    added: dict[str, int]
    needs_nfc: bool


class FastTokenizer:
    def __init__(self, own: Tokenizer, description: Description) -> None:
        self._own = own
        self._needs_nfc = description.needs_nfc
        tokens = [*description.ranks.values(), *description.added.values()]
        self._first_missing = max(tokens) + 1
        """The ids from here on stand for bytes without a token, which tiktoken does not allow."""
        missing = {
            bytes([byte]): self._first_missing + byte
            for byte in range(256)
            if bytes([byte]) not in description.ranks
        }
        self._encoding = tiktoken.Encoding(
            "checkpoint",
            pat_str=description.split,
            mergeable_ranks={**description.ranks, **missing},
            special_tokens=description.added,
        )
        self._prefix, self._suffix = _surroundings(own)

    def encode(self, text: str, add_special_tokens: bool) -> NDArray[np.int32] | None:
        """Returns None for a text that only the checkpoint's own tokenizer should read."""
        if self._needs_nfc and not unicodedata.is_normalized("NFC", text):
            return None
        try:
            tokens = self._encoding.encode_to_numpy(text, allowed_special="all")
        except ValueError:  # its expressions give up on very long runs of spaces
            return None
        if tokens.max(initial=0) >= self._first_missing:
            return None
        ids = tokens.astype(np.int32)
        if add_special_tokens and (self._prefix.size or self._suffix.size):
            return np.concatenate([self._prefix, ids, self._suffix])
        return ids


def _surroundings(own: Tokenizer) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns the special tokens before and after a text."""
    plain, whole = own.encode("a", False), own.encode("a", True)
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return (
                np.array(whole[:start], np.int32),
                np.array(whole[start + len(plain) :], np.int32),
            )
    raise UnsupportedError("special tokens change the text between them")


def describe(own: Tokenizer) -> Description:
    """Raises UnsupportedError."""
    description: dict[str, Any] = json.loads(own.backend.to_str())
    model = description["model"]
    if model.get("type") != "BPE":
        raise UnsupportedError(f"the model is {model.get('type')}, not BPE")
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise UnsupportedError(f"the model has {name}")
    if model.get("byte_fallback"):
        raise UnsupportedError("the model has byte_fallback")
    normalizer = description.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise UnsupportedError(f"the normalizer is {normalizer.get('type')}")
    added = _added(description, has_normalizer=normalizer is not None)
    split = _split(description.get("pre_tokenizer") or {})
    return Description(split, _ranks(model, added), added, normalizer is not None)


def _added(description: dict[str, Any], *, has_normalizer: bool) -> dict[str, int]:
    added: dict[str, int] = {}
    for entry in description["added_tokens"]:
        if entry["lstrip"] or entry["rstrip"] or entry["single_word"]:
            raise UnsupportedError(f"the added token {entry['content']!r} is more than its text")
        if has_normalizer and entry["normalized"]:
            raise UnsupportedError(f"the added token {entry['content']!r} is normalized")
        added[entry["content"]] = entry["id"]
    words = sorted(added)
    for word, following in pairwise(words):
        # tiktoken takes any of the two, the checkpoint's own the longer one
        if not word or following.startswith(word):
            raise UnsupportedError(f"the added token {following!r} begins with another one")
    return added


def _split(pre_tokenizer: dict[str, Any]) -> str:
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    kinds = [step.get("type") for step in steps]
    if not steps or kinds[-1] != "ByteLevel" or steps[-1].get("add_prefix_space"):
        raise UnsupportedError(f"the pre-tokenizer is {'+'.join(map(str, kinds))}")
    first, has_words = steps[:-1], steps[-1].get("use_regex", True)
    if not first and has_words:
        return GPT2_SPLIT
    if kinds == ["Digits", "ByteLevel"] and first[0].get("individual_digits") and has_words:
        return DIGITS_SPLIT
    if kinds == ["Split", "ByteLevel"] and not has_words:
        step = first[0]
        split = step.get("pattern", {}).get("Regex", "")
        if (
            step.get("behavior") == "Isolated"
            and not step.get("invert")
            and split
            and KNOWN_SYNTAX.fullmatch(split)
        ):
            return str(split)
    raise UnsupportedError(f"the pre-tokenizer is {'+'.join(map(str, kinds))}")


def _ranks(model: dict[str, Any], added: dict[str, int]) -> dict[bytes, int]:
    """The bytes of every token -> its id, which must rise with the order of the merges."""
    vocabulary: dict[str, int] = model["vocab"]
    try:
        ranks = {
            bytes(map(BYTE_OF.__getitem__, word)): token
            for word, token in vocabulary.items()
            if word not in added
        }
    except KeyError as error:
        raise UnsupportedError(f"a token has the character {error.args[0]!r}") from None
    last = -1
    for merge in model["merges"]:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        joined = vocabulary.get(left + right, -1)
        if joined < last or left in added or right in added or left + right in added:
            raise UnsupportedError("the ids of tokens do not rise with the order of the merges")
        last = joined
    return ranks


# The proof.


def prove(own: Tokenizer, fast: FastTokenizer, description: Description) -> Iterator[None]:
    """Yields after some milliseconds of work each time. Raises UnsupportedError where the two
    disagree."""
    yield from _prove_vocabulary(own, description)
    for text in _texts(list(description.added)):
        _compare(own, fast, text, add_special_tokens=False)
        _compare(own, fast, text, add_special_tokens=True)
        yield
    # Every character after and before a space, a letter, a digit and an apostrophe.
    lines = [f"{point}a'{point} 1{point} {point}\n" for point in _code_points()]
    if description.needs_nfc:
        lines = [line for line in lines if unicodedata.is_normalized("NFC", line)]
    for start in range(0, len(lines), LINES_PER_SLICE):
        text = "".join(lines[start : start + LINES_PER_SLICE])
        _compare(own, fast, text, add_special_tokens=False)
        yield


def _prove_vocabulary(own: Tokenizer, description: Description) -> Iterator[None]:
    character_of = {byte: character for character, byte in BYTE_OF.items()}
    split = own.backend.model.tokenize
    for number, (data, token) in enumerate(description.ranks.items()):
        pieces = split("".join(map(character_of.__getitem__, data)))
        if len(pieces) != 1 or pieces[0].id != token:
            raise UnsupportedError(f"the bytes of token {token} are not encoded as that token")
        if number % WORDS_PER_SLICE == 0:
            yield


def _compare(own: Tokenizer, fast: FastTokenizer, text: str, *, add_special_tokens: bool) -> None:
    tokens = fast.encode(text, add_special_tokens)
    if tokens is not None and tokens.tolist() != own.encode(text, add_special_tokens):
        raise UnsupportedError(f"the text {text[:100]!r} is encoded differently")


TEXTS = (
    "", " ", "  ", "\n", "\r\n\r\n", " \n \t\n", "\u00a0", "\u3000\u2003 x", "\x00\x01\x7f\x85",
    "Hello, world! It's 12:30; we'll see 'S 'RE 'll'll don't DON'T x'y '",
    "1 12 123 1234 12345 1,000.50 ١٢٣ Ⅷ ½ 2² x1y2 a 1 b  2   3",
    "def f(x):\n    return {'a': [1, 2.5e-3]}  # done\n\n\n\tif x != y:\n\t\tpass\n    \n",
    "人工智能是计算机科学的一个分支。東京タワー 한국어 ภาษาไทย हिन्दी العربية עברית ελληνικά",
    "😀😃 👩‍💻🇩🇪 ✨ e\u0301 é ﬁ \uff45 \u0130 \u0131 \u017f '\u017f ß 'ß \u200b\u200d\ufeff\ufffd",
    "a" * 300, "a " * 100, "aA" * 50, "ab" * 99 + "a",
    " " * 200 + "x" + "\n" * 100 + "1" + "\t" * 50,
    "https://example.org/?q=%20&x=1#y <b>&amp;</b> $a_b-c~d^e`f`| \\ \"'\"'",
)  # fmt: skip
"""Short texts that are hard to split."""


def _texts(added: list[str]) -> Iterator[str]:
    yield from TEXTS
    yield "".join(TEXTS)
    for word in added[:64]:
        yield f"{word}{word} {word}\n{word}a1{word[:-1]}{word[1:]}'{word}  {word}"
    source = random.Random(0)
    parts = [part for text in TEXTS for part in re.findall(r"\s+|\w+|\W", text)] + added[:8]
    for _ in range(NUM_RANDOM_TEXTS):
        yield "".join(source.choices(parts, k=source.randint(1, 60)))


def _code_points() -> list[str]:
    """The characters of the blocks in which kinds of characters are mixed; ideographs and syllables
    are all alike."""
    ranges = [
        (0x0000, 0x3400), (0x4DB0, 0x4E10), (0x9FE0, 0xAC10), (0xD7A0, 0xD800), (0xF8F0, 0x12000),
        (0x16800, 0x17010), (0x187F0, 0x18810), (0x18AF0, 0x18D10), (0x1B000, 0x1BD00),
        (0x1CF00, 0x1D800), (0x1DA00, 0x1FC00), (0x2A6D0, 0x2A710), (0x323A0, 0x323C0),
        (0xE0000, 0xE0200),
    ]  # fmt: skip
    return [chr(point) for start, end in ranges for point in range(start, end)]
