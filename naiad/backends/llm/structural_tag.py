"""Checks a structural tag before the grammar library reads it.

Rule: the library reads schemas and expressions inside a tag by itself and writes every repeat out,
      so the sum of all repeats is bounded here, as it is for other grammars.
"""

from __future__ import annotations

import json
import re
from typing import Any

from naiad.errors import invalid_arg
from naiad.llm.grammar.rules import MAX_REPEATS

MAX_DEPTH = 64
_COUNT = re.compile(r"\{\s*(\d{1,9})\d*\s*(?:,\s*(\d{0,9})\d*\s*)?\}")
_COUNTED = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


def check_structural_tag(text: str) -> None:
    """Raises NaiadError, and ValueError if the text is not JSON."""
    total = _num_repeats(json.loads(text), 0)
    if total > MAX_REPEATS:
        raise invalid_arg(
            f"the structural_tag of the request repeats things {total} times, "
            f"expected at most {MAX_REPEATS}"
        )


def _num_repeats(value: Any, depth: int) -> int:
    if depth > MAX_DEPTH:
        raise invalid_arg("the structural_tag of the request is nested too deeply")
    if isinstance(value, str):
        return sum(max(int(low), int(high or 0)) for low, high in _COUNT.findall(value))
    if isinstance(value, list):
        return sum(_num_repeats(entry, depth + 1) for entry in value)
    if not isinstance(value, dict):
        return 0
    counts: list[int] = [value[name] for name in _COUNTED if isinstance(value.get(name), int)]
    return sum(counts) + sum(_num_repeats(entry, depth + 1) for entry in value.values())
