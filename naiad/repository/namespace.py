"""Finds the model that a name means. With --model-namespacing, models of the same name may exist in
several repositories.

In:  a name as clients, ensembles and other models write it. Out: the entry of one model, or
     Triton's error. A key is the name itself or, with namespacing, `<repository>::<name>`; clients
     may write either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from naiad.errors import invalid_arg
from naiad.repository.entry import Entry

SEPARATOR = "::"


def model_key(namespace: str, name: str) -> str:
    return f"{namespace}{SEPARATOR}{name}"


def name_of(key: str) -> str:
    return key.rpartition(SEPARATOR)[2]


class Entries:
    def __init__(self, *, is_namespacing: bool = False) -> None:
        self.is_namespacing = is_namespacing
        self.by_key: dict[str, Entry] = {}
        """Without namespacing, a request needs only this lookup."""
        self.on_change: Callable[[], None] | None = None
        """Called whenever the models that serve have changed."""

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self.by_key.values()))

    def add(self, key: str, name: str, namespace: str = "") -> Entry:
        """Returns the entry with this key, which is created if there is none."""
        entry = self.by_key.get(key)
        if entry is None:
            entry = self.by_key[key] = Entry(key, name, namespace, self._changed)
        return entry

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def remove(self, key: str) -> None:
        self.by_key.pop(key, None)

    def find(self, name: str) -> Entry | None:
        """Raises NaiadError if the name is ambiguous."""
        entry = self.by_key.get(name)
        if entry is not None or not self.is_namespacing:
            return entry
        found = self.named(name)
        wanted = [entry for entry in found if entry.is_wanted or entry.models] or found
        if len(wanted) > 1:
            raise invalid_arg(
                f"There are {len(wanted)} identifiers of model '{name}' in global map, "
                "model namespace must be provided to resolve ambiguity."
            )
        return wanted[0] if wanted else None

    def named(self, name: str) -> list[Entry]:
        if not self.is_namespacing:
            entry = self.by_key.get(name)
            return [] if entry is None else [entry]
        return [entry for entry in self.by_key.values() if entry.name == name]
