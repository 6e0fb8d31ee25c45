"""Tests of structural tags: repeats are counted wherever the library would write them out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from naiad.backends.llm.structural_tag import check_structural_tag
from naiad.errors import NaiadError


def tag(**content: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": {"type": "tag", "content": content}})


def test_accepts_few_repeats() -> None:
    check_structural_tag(tag(type="regex", pattern="[a-z]{1,40}"))
    check_structural_tag(tag(type="json_schema", json_schema={"maxLength": 400, "minItems": 3}))


@pytest.mark.parametrize(
    "content",
    [
        {"type": "regex", "pattern": "a{1,5000}"},
        {"type": "regex", "pattern": "a{5000}b{ 2 , }"},
        {"type": "regex", "pattern": "a{1,99999999999999999999}"},
        {"type": "json_schema", "json_schema": {"properties": {"a": {"maxLength": 5000}}}},
        {"type": "json_schema", "json_schema": {"anyOf": [{"minItems": 2500}, {"maxItems": 2500}]}},
    ],
)
def test_rejects_many_repeats(content: dict[str, Any]) -> None:
    with pytest.raises(NaiadError, match=r"repeats things \d+ times, expected at most 4096"):
        check_structural_tag(tag(**content))


def test_rejects_deep_nesting_and_text_that_is_not_json() -> None:
    with pytest.raises(NaiadError, match="nested too deeply"):
        check_structural_tag("[" * 500 + "]" * 500)
    with pytest.raises(ValueError, match="Expecting"):
        check_structural_tag("{")
