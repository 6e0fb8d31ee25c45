"""Writes plain values (dicts, lists, texts, numbers, booleans) as YAML.

Rule: a text that YAML could read as something else is written in quotes, as JSON, which is YAML.
"""

from __future__ import annotations

import json
import re
from typing import Any

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def yaml_text(value: Any, indent: int = 0) -> str:
    return "".join(f"{' ' * indent}{line}\n" for line in _lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, entry in value.items() for line in _entry(str(key), entry)]
    if isinstance(value, list) and value:
        return [line for entry in value for line in _item(entry)]
    return [_scalar(value)]


def _entry(key: str, value: Any) -> list[str]:
    lines = _lines(value)
    if isinstance(value, dict | list) and value:
        return [f"{_scalar(key)}:", *(f"  {line}" for line in lines)]
    return [f"{_scalar(key)}: {lines[0]}"]


def _item(value: Any) -> list[str]:
    first, *others = _lines(value)
    return [f"- {first}", *(f"  {line}" for line in others)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)
