from __future__ import annotations

from typing import Any

import pytest

from naiad.errors import Code, NaiadError
from naiad.llm.grammar.reference import find_reference

NULL = {"type": "null"}
ROOT: dict[str, Any] = {
    "$defs": {"a": NULL, "b/c~d e": {"type": "integer"}, "": True},
    "anyOf": [NULL],
}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("#", ROOT),
        ("#/$defs/a", NULL),
        ("#/$defs/b~1c~0d%20e", {"type": "integer"}),
        ("#/$defs/a/type", "null"),
        ("#/$defs/", True),
    ],
)
def test_finds_places_inside_the_schema(pointer: str, found: Any) -> None:
    assert find_reference(ROOT, pointer, "#") == found


@pytest.mark.parametrize(
    ("pointer", "words"),
    [
        ("#/x", "is '#/x', and there is no such place in it that could be used"),
        ("#/$defs/a/type/b", ".*no such place"),
        ("#/anyOf/0", ".*no such place"),
        ("#a", ".*expected a place inside it"),
        (
            "https://example.org/a",
            r"is \"https://example.org/a\", expected a place inside it \('#/...'\)",
        ),
        (3, "is 3, expected a place inside it"),
    ],
)
def test_rejects_references_that_lead_nowhere(pointer: Any, words: str) -> None:
    with pytest.raises(NaiadError, match=f"'\\$ref' at '#/items' of the schema {words}") as refused:
        find_reference(ROOT, pointer, "#/items")
    assert refused.value.code is Code.INVALID_ARG
