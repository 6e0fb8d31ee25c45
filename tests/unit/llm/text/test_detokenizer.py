"""Pieces of text add up to the whole, for any tokens, and no piece ends in half a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch (the llm extra)")
pytest.importorskip("tokenizers", reason="needs tokenizers (the llm extra)")

from tokenizers import decoders

from naiad.llm.text.detokenizer import (
    ByteLevelDetokenizer,
    PieceDetokenizer,
    WindowDetokenizer,
    build_detokenizer,
)
from naiad.llm.text.tokenizer import Tokenizer
from tests.unit.llm import tokenizers_made

BYTE_LEVEL = Tokenizer(tokenizers_made.byte_level(), [400])
SENTENCE_PIECE = Tokenizer(tokenizers_made.sentence_piece(), [2])


def with_decoder(*steps: decoders.Decoder) -> Tokenizer:
    backend = tokenizers_made.sentence_piece()
    backend.decoder = decoders.Sequence(list(steps))
    return Tokenizer(backend, [2])


UNSTRIPPED = with_decoder(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
"""As Gemma has it."""
OTHER = with_decoder(
    decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)
)
TEXT_TOKENS = [
    token
    for token in range(SENTENCE_PIECE.vocab_size)
    if not SENTENCE_PIECE.backend.id_to_token(token).startswith("<0x")
]
KINDS = [BYTE_LEVEL, SENTENCE_PIECE, UNSTRIPPED, OTHER]
NAMES = ["byte-level", "sentence-piece", "unstripped", "other"]


def pieces(
    tokenizer: Tokenizer, prompt: list[int], tokens: list[int], skip_special_tokens: bool = True
) -> list[str]:
    detokenizer = build_detokenizer(tokenizer, prompt, skip_special_tokens)
    return [*(detokenizer.append(token) for token in tokens), detokenizer.finish()]


def test_the_decoder_determines_the_kind() -> None:
    assert isinstance(build_detokenizer(BYTE_LEVEL, [], True), ByteLevelDetokenizer)
    assert isinstance(build_detokenizer(SENTENCE_PIECE, [], True), PieceDetokenizer)
    assert isinstance(build_detokenizer(UNSTRIPPED, [], True), PieceDetokenizer)
    assert isinstance(build_detokenizer(OTHER, [], True), WindowDetokenizer)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=30), st.booleans())
def test_byte_level_pieces_add_up(tokens: list[int], skip_special_tokens: bool) -> None:
    """Random tokens: broken UTF-8 of every kind, special tokens in between."""
    assert "".join(pieces(BYTE_LEVEL, [], tokens, skip_special_tokens)) == BYTE_LEVEL.decode(
        tokens, skip_special_tokens
    )


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_byte_level_text_comes_out_whole(text: str) -> None:
    assert (
        "".join(pieces(BYTE_LEVEL, [], BYTE_LEVEL.encode(text)))
        == text.encode("utf-8", "replace").decode()
    )


@pytest.mark.parametrize("tokenizer", [SENTENCE_PIECE, UNSTRIPPED, OTHER], ids=NAMES[1:])
@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40), st.integers(0, 40))
def test_sentence_piece_text_comes_out_whole(tokenizer: Tokenizer, text: str, cut: int) -> None:
    """The prompt's last tokens are the context: a leading space of the completion is kept."""
    tokens = tokenizer.encode("the " + text)
    cut = min(1 + cut, len(tokens))
    prompt, completion = tokens[:cut], tokens[cut:]
    whole = tokenizer.decode(tokens)
    known = tokenizer.decode(prompt)
    if not known.endswith("\ufffd"):
        assert known + "".join(pieces(tokenizer, prompt, completion)) == whole


@pytest.mark.parametrize("tokenizer", [SENTENCE_PIECE, UNSTRIPPED], ids=NAMES[1:3])
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from(TEXT_TOKENS), st.sampled_from(["é", "東", "😀", "a "])),
        max_size=30,
    ),
    st.booleans(),
)
def test_pieces_add_up(
    tokenizer: Tokenizer, parts: list[int | str], skip_special_tokens: bool
) -> None:
    """Random tokens after an empty prompt, special ones too, and characters that are bytes."""
    tokens: list[int] = []
    for part in parts:
        characters = [part] if isinstance(part, int) else byte_tokens(part)
        tokens += characters
    assert "".join(pieces(tokenizer, [], tokens, skip_special_tokens)) == tokenizer.decode(
        tokens, skip_special_tokens
    )


def byte_tokens(text: str) -> list[int]:
    find = SENTENCE_PIECE.backend.token_to_id
    return [find(f"<0x{byte:02X}>") for byte in text.encode()]


def test_broken_bytes_are_a_replacement_character_each() -> None:
    the = SENTENCE_PIECE.encode("the")
    half = byte_tokens("東")[:2]
    assert pieces(SENTENCE_PIECE, the, [*half, *the]) == ["", "", "\ufffd\ufffd the", ""]
    assert pieces(SENTENCE_PIECE, the, half) == ["", "", "\ufffd\ufffd"]
    assert pieces(SENTENCE_PIECE, the, byte_tokens("é")) == ["", "é", ""]


def test_special_tokens_do_not_interrupt_a_character() -> None:
    first, second = byte_tokens("é")
    assert "".join(pieces(SENTENCE_PIECE, [], [first, 2, second])) == "é"
    assert "".join(pieces(SENTENCE_PIECE, [], [first, 2, second], False)) == "\ufffd</s>\ufffd"


@pytest.mark.parametrize("tokenizer", KINDS, ids=NAMES)
def test_no_piece_ends_in_half_a_character(tokenizer: Tokenizer) -> None:
    text = "the 東京 😀 Größe q"
    given_out = pieces(tokenizer, tokenizer.encode("the"), tokenizer.encode(text))
    assert not any("\ufffd" in piece for piece in given_out)
    assert "".join(given_out).strip() == text


def test_returns_an_unfinished_character_at_the_end() -> None:
    tokens = BYTE_LEVEL.encode("é")
    half = [BYTE_LEVEL.backend.token_to_id("Ã")]
    assert "".join(pieces(BYTE_LEVEL, [], half)) == "\ufffd"
    assert "".join(pieces(BYTE_LEVEL, [], tokens)) == "é"


def test_added_tokens_keep_their_own_text() -> None:
    tool, end = BYTE_LEVEL.backend.token_to_id("<tool>"), BYTE_LEVEL.backend.token_to_id("<|end|>")
    assert "".join(pieces(BYTE_LEVEL, [], [tool, end])) == "<tool>"
    assert "".join(pieces(BYTE_LEVEL, [], [tool, end], False)) == "<tool><|end|>"
    assert BYTE_LEVEL.token_bytes(10_000_000) == b""
