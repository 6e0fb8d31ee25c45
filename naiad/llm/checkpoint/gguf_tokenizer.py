"""Builds a tokenizers.Tokenizer from the tokenizer in a GGUF file.

There are two kinds: "gpt2" is byte-level BPE with its merges in the file, and "llama" is
SentencePiece, whose merges follow from its scores.
Rules: an unknown pre-tokenizer is rejected, because a guess would split texts differently than in
       the model's training. Keys are checked for type and range before they are used.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from naiad.errors import NaiadError, invalid_arg, unsupported
from naiad.llm.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED = 3, 4
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


PREFIX = "tokenizer.ggml."


class TokenizerKeys(msgspec.Struct, frozen=True):
    """The keys of a GGUF file that begin with PREFIX."""

    model: str | None = None
    tokens: list[str] = []
    scores: list[float] = []
    token_type: list[int] = []
    merges: list[str] = []
    pre: str = "default"
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    unknown_token_id: int | None = None
    add_bos_token: bool | int | None = None

    def check(self) -> None:
        """Raises NaiadError."""
        num_tokens = len(self.tokens)
        for name in ("bos", "eos", "eot", "unknown"):
            token: int | None = getattr(self, f"{name}_token_id")
            if token is not None and not 0 <= token < num_tokens:
                raise invalid_arg(
                    f"the GGUF file's {PREFIX}{name}_token_id is {token}, but it has {num_tokens} "
                    "tokens"
                )
        if self.scores and len(self.scores) != num_tokens:
            raise invalid_arg(
                f"the GGUF file has {len(self.scores)} scores of tokens, expected {num_tokens}"
            )
        if len(self.token_type) > num_tokens:
            raise invalid_arg(
                f"the GGUF file has {len(self.token_type)} types of tokens, but {num_tokens} tokens"
            )


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Raises NaiadError."""
    keys = _read_keys(metadata)
    try:
        return _build(keys)
    except NaiadError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise invalid_arg(f"the GGUF file's tokenizer cannot be used: {error}") from error


def _read_keys(metadata: dict[str, Any]) -> TokenizerKeys:
    values = {
        key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)
    }
    try:
        keys = msgspec.convert(values, TokenizerKeys)
    except msgspec.ValidationError as error:
        raise invalid_arg(f"the GGUF file's tokenizer cannot be read: {error}") from error
    keys.check()
    return keys


def _build(keys: TokenizerKeys) -> Tokenizer:
    kind, tokens, bos = keys.model, keys.tokens, keys.bos_token_id
    if kind == "gpt2":
        backend = _byte_level(keys)
    elif kind == "llama":
        backend = _sentence_piece(keys)
    else:
        raise unsupported(f"the GGUF file's tokenizer is '{kind}', expected gpt2 or llama")
    _add_special_tokens(backend, keys)
    adds_bos = kind == "llama" if keys.add_bos_token is None else keys.add_bos_token
    if adds_bos and bos is not None:
        word = tokens[bos]
        backend.post_processor = processors.Sequence(
            [
                *_processors(kind),
                processors.TemplateProcessing(f"{word} $A", f"{word} $A {word} $B", [(word, bos)]),
            ]
        )
    elif kind == "gpt2":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    eos_token_ids = [token for token in (keys.eos_token_id, keys.eot_token_id) if token is not None]
    return Tokenizer(backend, eos_token_ids, bos)


def _processors(kind: str) -> list[Any]:
    return [processors.ByteLevel(trim_offsets=False)] if kind == "gpt2" else []


def _byte_level(keys: TokenizerKeys) -> Backend:
    merges = [tuple(merge.split(" ", 1)) for merge in keys.merges]
    name = keys.pre
    backend = Backend(
        models.BPE(vocab=_vocabulary(keys.tokens), merges=merges, ignore_merges=name == "llama-bpe")
    )
    backend.pre_tokenizer = _pre_tokenizer(name)
    backend.decoder = decoders.ByteLevel()
    if name == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _pre_tokenizer(name: str) -> Any:
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name in ("default", "gpt-2"):
        return by_words
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_words])
    splits = {"llama-bpe": LLAMA3_SPLIT, "qwen2": QWEN2_SPLIT}
    if name not in splits:
        raise unsupported(
            f"the GGUF file's pre-tokenizer is '{name}', "
            f"expected default, gpt-2, smollm, {', '.join(splits)}"
        )
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(splits[name]), "isolated"), as_bytes]
    )


def _sentence_piece(keys: TokenizerKeys) -> Backend:
    tokens = keys.tokens
    if not tokens:
        raise invalid_arg("the GGUF file's tokenizer has no tokens")
    vocabulary = _vocabulary(tokens)
    scores = keys.scores or [0.0] * len(tokens)
    unknown = tokens[keys.unknown_token_id or 0]
    backend = Backend(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(vocabulary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend


def _merges(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Returns every way to join two tokens into another one, the one with the best score first, as
    SentencePiece would merge."""
    merges = [
        (-scores[index], vocabulary[word[:cut]], vocabulary[word[cut:]], word[:cut], word[cut:])
        for word, index in vocabulary.items()
        for cut in range(1, len(word))
        if word[:cut] in vocabulary and word[cut:] in vocabulary
    ]
    merges.sort()
    return [(left, right) for _, _, _, left, right in merges]


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for index, token in enumerate(tokens):
        vocabulary.setdefault(token, index)
    return vocabulary


def _add_special_tokens(backend: Backend, keys: TokenizerKeys) -> None:
    kinds, tokens = keys.token_type, keys.tokens
    control = [
        AddedToken(tokens[i], special=True, normalized=False)
        for i, kind in enumerate(kinds)
        if kind == CONTROL
    ]
    defined = [
        AddedToken(tokens[i], special=False, normalized=False)
        for i, kind in enumerate(kinds)
        if kind == USER_DEFINED
    ]
    backend.add_special_tokens(control)
    backend.add_tokens(defined)
