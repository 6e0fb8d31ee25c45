"""The name somebody probably meant: spelling mistakes in field names, enum values, tensor names and
model names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What people write who know the thing by the name other frameworks or other parts of the format
# give it.
_ALIASES = {
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_INT": "TYPE_INT32",
    "TYPE_LONG": "TYPE_INT64",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_STR": "TYPE_STRING",
    "TYPE_BOOLEAN": "TYPE_BOOL",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """Empty when nothing is near enough to be worth saying."""
    names = list(known)
    for candidate in (name, name.upper()):
        if candidate in names:
            return candidate
        if _ALIASES.get(candidate) in names:
            return _ALIASES[candidate]
    by_lower = {candidate.lower(): candidate for candidate in names}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[close[0]] if close else ""
