"""Tests of the ranges of sampling parameters: each end is accepted, what is beyond is rejected with
the parameter's name, and the documentation has the same ranges."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import Code, NaiadError
from naiad.llm import parameters as limits
from naiad.llm.parameters import FLOAT_RANGES, INTEGER_RANGES, SamplingParameters

DOCS = Path(__file__).parents[3] / "docs" / "llm-backend.md"


def check(**fields: Any) -> None:
    SamplingParameters(**fields).check_ranges()


def rejection(**fields: Any) -> str:
    with pytest.raises(NaiadError) as caught:
        check(**fields)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@pytest.mark.parametrize(("name", "ends"), INTEGER_RANGES.items())
def test_integers(name: str, ends: tuple[int, int]) -> None:
    low, high = ends
    for value in (low, high):
        others = {"max_tokens": high} if name == "min_tokens" else {}
        check(**{name: value}, **others)
    for value in (low - 1, high + 1, 10**30, -(10**30)):
        assert rejection(**{name: value}).startswith(f"{name} is {value}, expected ")
    assert "a number of 33220 bits" in rejection(**{name: 10**10_000})


@pytest.mark.parametrize(("name", "ends"), FLOAT_RANGES.items())
def test_numbers(name: str, ends: tuple[float, float]) -> None:
    low, high = ends
    for value in (low or 1e-9, high):
        check(**{name: value})
    for value in (low - 0.1, high + 0.1, math.inf, -math.inf, math.nan):
        assert rejection(**{name: value}).startswith(f"{name} is ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["x"] * 65}, "stop has 65 entries, expected at most 64"),
        ({"stop": ["x" * 257]}, "stop has a string of 257 characters, expected at most 256"),
        ({"stop": ["x" * 100] * 41}, "stop has 4100 characters, expected at most 4096"),
        ({"bad_words": ["x"] * 129}, "bad_words has 129 entries, expected at most 128"),
        ({"bad_words": ["x" * 4097]}, "bad_words has 4097 characters, expected at most 4096"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids has 65 entries, expected at most 64"),
        (
            {"logit_bias": dict.fromkeys(range(1025), 1.0)},
            "logit_bias has 1025 entries, expected at most 1024",
        ),
        ({"stop": [""]}, "stop holds an empty string"),
        ({"top_p": 0.0}, "top_p is 0, expected more than 0"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_lists(fields: dict[str, Any], message: str) -> None:
    assert rejection(**fields) == message


def test_the_documentation_has_the_same_ranges() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", _section("### Ranges"), re.MULTILINE))
    for name, (low, high) in INTEGER_RANGES.items():
        assert rows[name].startswith(f"{_shown(low)} to {_shown(high)}"), name
    for name, (lowest, highest) in FLOAT_RANGES.items():
        assert rows[name].startswith(f"{lowest:g} to {highest:g}"), name
    for name, numbers in {
        "stop": (limits.MAX_STOPS, limits.MAX_STOP_LENGTH, limits.MAX_STOP_CHARACTERS),
        "bad_words": (limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_CHARACTERS),
        "stop_token_ids": (limits.MAX_STOP_TOKENS,),
        "logit_bias": (limits.MAX_LOGIT_BIAS,),
        "cache_salt": (limits.MAX_SALT_CHARACTERS,),
    }.items():
        for number in numbers:
            assert re.search(rf"\b{number}\b", rows[name]), (name, number)


def _section(title: str) -> str:
    return DOCS.read_text().partition(title)[2].partition("\n#")[0]


def _shown(number: int) -> str:
    powers = {-(1 << 63): "-2^63", (1 << 63) - 1: "2^63-1", (1 << 64) - 1: "2^64-1"}
    return powers.get(number, str(number))
