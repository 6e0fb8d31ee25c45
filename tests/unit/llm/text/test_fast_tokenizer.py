"""The faster tokenizer gives the checkpoint's own tokens for any text, or is not used."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("tokenizers", reason="needs tokenizers (the llm extra)")
pytest.importorskip("tiktoken", reason="needs tiktoken (the llm extra)")

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from naiad.llm.checkpoint.gguf_tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT
from naiad.llm.text.fast_tokenizer import (
    FastTokenizer,
    UnsupportedError,
    describe,
    prove,
)
from naiad.llm.text.tokenizer import Tokenizer
from tests.unit.llm import tokenizers_made


def with_split(split: str) -> Backend:
    backend = tokenizers_made.byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return backend


def gpt2() -> Backend:
    return tokenizers_made.byte_level()


def smollm() -> Backend:
    backend = tokenizers_made.byte_level()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return backend


def llama3() -> Backend:
    backend = with_split(LLAMA3_SPLIT)
    end = backend.token_to_id("<|end|>")
    backend.post_processor = processors.TemplateProcessing("<|end|> $A", None, [("<|end|>", end)])
    return backend


def qwen2() -> Backend:
    backend = with_split(QWEN2_SPLIT)
    backend.normalizer = normalizers.NFC()
    added = backend.get_added_tokens_decoder().values()
    backend.add_tokens([AddedToken(entry.content, normalized=False) for entry in added])
    return backend


KINDS = [gpt2, smollm, llama3, qwen2]


def proven(backend: Backend) -> tuple[Tokenizer, FastTokenizer]:
    own = Tokenizer(backend, [])
    description = describe(own)
    fast = FastTokenizer(own, description)
    for _ in prove(own, fast, description):
        pass
    return own, fast


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def both(request: pytest.FixtureRequest) -> tuple[Tokenizer, FastTokenizer]:
    build: Callable[[], Backend] = request.param
    return proven(build())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=8),
            st.sampled_from(["<|end|>", "<tool>", "  ", "\n\n", "'s", "'LL", "12345", " the", "é"]),
        ),
        max_size=20,
    ).map("".join),
    st.booleans(),
)
def test_any_text_has_the_same_tokens(
    both: tuple[Tokenizer, FastTokenizer], text: str, add_special_tokens: bool
) -> None:
    own, fast = both
    tokens = fast.encode(text, add_special_tokens)
    if tokens is not None:
        assert tokens.tolist() == own.encode(text, add_special_tokens)


def test_most_texts_are_left_to_it(both: tuple[Tokenizer, FastTokenizer]) -> None:
    own, fast = both
    for text in ("", "The quick brown fox: 東京 😀 <|end|> 12345\n", "a" * 10_000):
        tokens = fast.encode(text, True)
        assert tokens is not None
        assert tokens.tolist() == own.encode(text, True)


def test_leaves_texts_that_must_be_normalized_to_the_checkpoints_own() -> None:
    _, fast = proven(qwen2())
    assert fast.encode("e\u0301", False) is None
    assert fast.encode("<|end|>\u0338", False) is None  # a mark that would join the last character
    assert fast.encode("é <|end|>", False) is not None


def test_leaves_bytes_without_a_token_to_the_checkpoints_own() -> None:
    words = [*"abc", "ab"]
    backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    own = Tokenizer(backend, [])
    fast = FastTokenizer(own, describe(own))
    assert fast.encode("abcab", False) is not None
    assert fast.encode("abd", False) is None


def changed(change: Callable[[dict[str, object]], None]) -> Tokenizer:
    description = json.loads(tokenizers_made.byte_level().to_str())
    change(description)
    return Tokenizer(Backend.from_str(json.dumps(description)), [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(normalizer={"type": "Lowercase"}), "the normalizer is Lowercase"),
        (lambda d: d.update(pre_tokenizer={"type": "Whitespace"}), "the pre-tokenizer is Whitesp"),
        (lambda d: d["pre_tokenizer"].update(add_prefix_space=True), "the pre-tokenizer is ByteL"),
        (lambda d: d["added_tokens"][0].update(lstrip=True), "is more than its text"),
        (lambda d: d["added_tokens"][0].update(content="<tool>x"), "begins with another one"),
        (lambda d: d["model"].update(dropout=0.5), "the model has dropout"),
        (lambda d: d["model"]["merges"].reverse(), "do not rise with the order of the merges"),
    ],
)
def test_refuses_what_tiktoken_may_do_differently(
    change: Callable[[dict[str, object]], None], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        describe(changed(change))


def test_refuses_sentence_piece() -> None:
    with pytest.raises(UnsupportedError, match="the model has unk_token"):
        describe(Tokenizer(tokenizers_made.sentence_piece(), []))


def test_finds_a_merge_that_only_tiktoken_makes() -> None:
    """`ab` and `c` are a token together, but the checkpoint makes it of `a` and `bc` only, which
    never happens: `ab` comes first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: index for index, word in enumerate([*alphabet, "ab", "bc", "abc"])}
    backend = Backend(models.BPE(vocabulary, [("a", "b"), ("b", "c"), ("a", "bc")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own = Tokenizer(backend, [])
    description = describe(own)
    fast = FastTokenizer(own, description)
    found = fast.encode("abc", False)
    assert found is not None
    assert found.tolist() != own.encode("abc", False)
    with pytest.raises(UnsupportedError, match="the bytes of token 258 are not encoded as that"):
        list(prove(own, fast, description))


def test_finds_a_split_that_is_different() -> None:
    """The proof does not rely on the description: here it is of another tokenizer."""
    own, other = Tokenizer(gpt2(), []), Tokenizer(llama3(), [])
    description = describe(other)
    fast = FastTokenizer(own, description)
    with pytest.raises(UnsupportedError, match="is encoded differently"):
        list(prove(own, fast, description))
