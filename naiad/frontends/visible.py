"""Lists for one key: what it may not see is left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from naiad.core.identity import Identity


class Named(Protocol):
    """A row about one model."""

    name: str


RowT = TypeVar("RowT", bound=Named)


def visible(rows: Iterable[RowT], identity: Identity | None) -> list[RowT]:
    """`identity` is None where the server has no API keys; everything is visible then."""
    if identity is None:
        return list(rows)
    return [row for row in rows if identity.may_see(row.name)]
