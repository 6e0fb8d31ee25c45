"""Tests of regular expressions as grammars: every text drawn from one fits, texts that fit are
recognised, and expressions that cannot be enforced are rejected."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naiad.errors import NaiadError
from naiad.llm.grammar.character_set import in_json
from naiad.llm.grammar.expression import read_expression
from naiad.llm.grammar.lower import lower
from naiad.llm.grammar.rules import ROOT, render
from tests.unit.llm.grammar.derivation import accepts, derive

EXPRESSIONS = [
    "abc", "a|b|", "(ab|c)*d+e?", "[a-c]{2,4}", "[^a-y\\s]{1}", "a{3}", "a{2,}", "x*?y+?",
    "(?:a|(b))c", "(?<n>a)b", "(?P<n>a)b",
    "\\d\\w\\D\\W\\S",
    "\\x41\\u0042\\u{43}", "[\\]\\-^]", "[-a]", "[a-]", "^a$|^b$", "(^a|b)c", "a(b|c$)", ".{2}",
    "\\.\\*\\[\\(\\{\\|\\\\\\/", "\\t\\n", "{",
    "",
    "é[à-ü]\U0001f600", "[\\w.-]+@x", "(a|b){2}(c|d){0,2}", "((a)(b)?)*", "(a*|b)*", "(a?)+c",
]  # fmt: skip


def python_form(expression: str) -> str:
    return re.sub(
        r"\\u\{(\w+)\}",
        lambda code: chr(int(code[1], 16)),
        re.sub(r"\(\?<(?=\w)", "(?P<", expression),
    )


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_text_drawn_fits(expression: str) -> None:
    rules = lower({ROOT: read_expression(expression)})
    render(rules)
    for seed in range(50):
        text = derive(rules, random.Random(seed))
        assert text is not None
        assert re.fullmatch(python_form(expression), text, re.ASCII), text


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_matches_the_same_texts_inside_a_json_string(expression: str) -> None:
    rules = lower({ROOT: read_expression(expression, in_json)})
    for seed in range(50):
        text = derive(rules, random.Random(seed))
        assert text is not None
        assert re.fullmatch(python_form(expression), json.loads(f'"{text}"'), re.ASCII), text


PIECES = st.sampled_from(
    ["a", "b", "[ab]", "(a|b)", "(?:ab)", ".", "a*", "b+", "(ab)?", "[^a]", "a{2}", "(a|ab){1,2}"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=4).map("".join), st.text("abc", max_size=7))
def test_matches_what_python_matches(expression: str, text: str) -> None:
    expected = re.fullmatch(expression, text) is not None
    rules = {ROOT: read_expression(expression)}
    assert accepts(rules, text) is expected
    assert accepts(lower(rules), text) is expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("(?=a)b", r"'\(\?='"), ("(?<!a)b", r"'\(\?<'"), ("(a)\\1", r"'\\1'"), ("a\\b", r"'\\b'"),
        ("\\p{L}", r"'\\p'"), ("a^b", r"'\^'"),
        ("a$b", r"'\$'"),
        ("(a$)b", r"'\$'"), ("(^a)*", "repeated anchor"), ("(a", "not closed"),
        ("a)", "closes nothing"), ("[a", "not closed"),
        ("*a", "after nothing"),
        ("a**", r"'\*'"), ("a{3,2}", "wrong order"), ("a{,2}", "others as text"),
        ("[b-a]", "invalid range"), ("[\\d-z]", "invalid range"),
        ("[]", "no characters"), ("\\ud800", "character code"),
        ("\\", r"'\\'"), ("(" * 200 + ")" * 200, "too many groups"),
    ],
)  # fmt: skip
def test_rejects_what_a_grammar_cannot_express(expression: str, words: str) -> None:
    with pytest.raises(NaiadError, match=words) as refused:
        read_expression(expression)
    assert refused.value.code.name == "INVALID_ARG"
