"""Tests of whole grammars: harmful ones are rejected, users' grammars are read and written again,
lowered repeats keep their meaning."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from naiad.errors import NaiadError
from naiad.llm.grammar.lower import lower
from naiad.llm.grammar.reader import read_grammar
from naiad.llm.grammar.rules import (
    ROOT,
    Characters,
    Choice,
    Node,
    Repeat,
    Rule,
    Series,
    Text,
    check,
    render,
    utf8_blocks,
)
from tests.unit.llm.grammar.derivation import accepts, derive

USERS = r"""
root ::= greeting (", " name)* [.!]? # a comment
greeting ::= "Hello" | "Good \"day\"\n"
name ::= [A-Z] [a-z]{2,4} | [^\x00-\x7f"\]\\-] | "x"{2} | "\u00e9"
"""


def test_matches_the_texts_of_a_users_grammar() -> None:
    rules = read_grammar(USERS)
    for text in ("Hello", 'Good "day"\n, Ada!', "Hello, é, xx, Emil.", "Hello, \U0001f600"):
        assert accepts(rules, text), text
    for text in ("", "hello", "Hello,Ada", "Hello, Ad", "Hello, Ada!!", "Hello, x", 'Hello, "'):
        assert not accepts(rules, text), text


def test_rendered_grammars_are_read_back_unchanged() -> None:
    rules = read_grammar(USERS)
    again = read_grammar(render(rules))
    assert render(again) == render(rules)
    for seed in range(30):
        text = derive(lower(rules), random.Random(seed))
        assert text is not None
        assert accepts(again, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no rule 'root'"), ('a ::= "x"', "no rule 'root'"), ("root ::= x", "no rule 'x'"),
        ('root ::= root "a" | "b"', "rule 'root' of the grammar begins with itself"),
        ('root ::= a\na ::= "x"? b\nb ::= a "y" | "z"', "begins with itself"),
        ('root ::= "a" root', "no end"),
        ("root ::= root", "begins with itself"),
        ('root ::= "a', "in line 1"), ('root ::= "a"\nroot ::= "b"', "two rules 'root'"),
        ('root ::= ("a"', "its end"),
        ('root ::= "a")', r"'\)'"),
        ('root "a"', "cannot be used"), ('root ::= (="a") "a"', "cannot be used"),
        ('root ::= TagDispatch("a")', r"'\('"),
        ("root ::= [b-a]", "wrong order"),
        ("root ::= []", "no characters"), ('root ::= "\\q"', r"'\\q'"),
        ('root ::= "a"{3,2}', r"'\{3,2\}'"),
        ('root ::= "a"{9999999}', "9999999 times"),
        ("root ::= " + "(" * 500 + '"a"' + ")" * 500, "too many groups"),
        ('root ::= [\\ud800]', "ud800"), ('root ::= "a" | *', r"'\*'"),
        ("::= x", "::="),
        ('root ::= /a/', "'/a/'"), ('root ::= ("a"{4000}){4000} ', "8000 times"),
    ],
)  # fmt: skip
def test_rejects_harmful_grammars(text: str, words: str) -> None:
    with pytest.raises(NaiadError, match=words) as refused:
        check(read_grammar(text))
    assert refused.value.code.name == "INVALID_ARG"


def test_rejects_a_grammar_that_is_too_large() -> None:
    with pytest.raises(NaiadError, match="bytes, expected at most"):
        render({ROOT: Text("x" * 300_000)})
    wide = Repeat(Characters(((0x20, 0xD7FF),)), 0, 600)
    render({ROOT: wide})
    with pytest.raises(
        NaiadError, match="600 places for many characters, counting repeats; this model accepts 512"
    ):
        render({ROOT: wide}, 512)


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(st.integers(0, 0xD7FF), st.integers(0, 0xD7FF))
    | st.tuples(st.integers(0xE000, 0x10FFFF), st.integers(0xE000, 0x10FFFF))
)
def test_ranges_are_written_in_parts_whose_bytes_are_independent(ends: tuple[int, int]) -> None:
    low, high = sorted(ends)
    at = low
    for first, last in utf8_blocks(low, high):
        assert first == at
        at = last + 1
        begin, end = chr(first).encode(), chr(last).encode()
        assert len(begin) == len(end)
        # All combinations of bytes between the two are there: as many as the part has characters.
        assert math.prod(b - a + 1 for a, b in zip(begin, end, strict=True)) == last - first + 1
    assert at == high + 1


LEAVES: st.SearchStrategy[Node] = st.sampled_from(
    [Text("a"), Text("ab"), Text(""), Characters(((0x61, 0x63),)), Rule("other")]
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: Series(tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: Choice(tuple(options))),
        st.tuples(inner, st.integers(0, 2), st.integers(1, 2) | st.none()).map(
            lambda drawn: Repeat(
                drawn[0], drawn[1], None if drawn[2] is None else drawn[1] + drawn[2]
            )
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(NODES, st.text("abc", max_size=6))
def test_lowered_repeats_mean_the_same(node: Node, text: str) -> None:
    rules = {ROOT: node, "other": Choice((Text("c"), Text("cb")))}
    lowered = lower(rules)
    try:
        check(lowered)
    except NaiadError:  # a repeat of a series that may be empty begins with itself
        assume(False)
    assert accepts(lowered, text) is accepts(rules, text)
