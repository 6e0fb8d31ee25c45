"""Sampling parameters by name: single values for lists, and names that other servers have."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.backends.llm.sampling import as_list, read_sampling
from naiad.errors import NaiadError


@pytest.mark.parametrize(
    ("value", "expected"), [(None, []), ("a", ["a"]), (["a", "b"], ["a", "b"]), (("a",), ["a"])]
)
def test_a_single_value_stands_for_a_list(value: Any, expected: list[str]) -> None:
    assert as_list(value) == expected


def test_texts_that_end_or_must_not_be_written() -> None:
    parameters = read_sampling({"stop": "a", "bad_words": ["b", "c"]})
    assert (parameters.stop, parameters.bad_words) == (["a"], ["b", "c"])


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("prompt", "text_input"),
        ("max_new_tokens", "max_tokens"),
        ("temprature", "temperature"),
        ("nonsense_at_all", ""),
    ],
)
def test_suggests_the_name_for_an_unknown_one(name: str, suggestion: str) -> None:
    with pytest.raises(NaiadError) as caught:
        read_sampling({name: "x"})
    hint = f"; did you mean '{suggestion}'?" if suggestion else ""
    assert caught.value.message == f"unknown sampling parameter '{name}'{hint}"
