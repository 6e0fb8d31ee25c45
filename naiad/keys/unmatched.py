"""Finds patterns of keys that match no model: probably a mistake, perhaps a model of tomorrow."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from naiad.core.identity import Identity


def unmatched_patterns(
    identities: Iterable[Identity], model_names: Collection[str]
) -> list[tuple[str, str]]:
    """(id of the key, pattern), sorted."""
    known: dict[str, bool] = {"*": True}
    found: set[tuple[str, str]] = set()
    for identity in identities:
        for pattern in identity.models:
            if pattern not in known:
                known[pattern] = any(fnmatchcase(name, pattern) for name in model_names)
            if not known[pattern]:
                found.add((identity.key_id, pattern))
    return sorted(found)
