"""Reads JSON files that somebody else has made, such as config.json of a checkpoint.

Rule: a pipe or a device in the place of a file would make its reader wait for ever, and is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from naiad.errors import invalid_arg, not_found

MAX_JSON_BYTES = 64 << 20


def require_regular(path: Path, owner: str) -> None:
    """Raises NaiadError. `owner` is what the file belongs to, for the message."""
    if not path.exists():
        raise not_found(f"{owner} has no {path.name}")
    if not path.is_file():
        raise invalid_arg(f"{path.name} of {owner} is not a file")


def read_json_object(path: Path, owner: str) -> dict[str, Any]:
    """Raises NaiadError."""
    value = _read_json(path, owner)
    if not isinstance(value, dict):
        raise invalid_arg(f"{path.name} of {owner} is not a JSON object")
    return value


def read_json_list(path: Path, owner: str) -> list[dict[str, Any]]:
    """Raises NaiadError unless it is a list of objects."""
    value = _read_json(path, owner)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise invalid_arg(f"{path.name} of {owner} is not a JSON list of objects")
    return value


def _read_json(path: Path, owner: str) -> Any:
    require_regular(path, owner)
    if path.stat().st_size > MAX_JSON_BYTES:
        raise invalid_arg(f"{path.name} of {owner} has more than {MAX_JSON_BYTES >> 20} MiB")
    try:
        return json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise invalid_arg(f"{path.name} of {owner} is not JSON: {error}") from error
