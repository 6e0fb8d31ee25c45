"""Where the models of one --model-repository are: a directory, or something that keeps a directory
like one (naiad.stores).

In:  names of models. Out: their local directories. Everything after this works on local files.
Rule: what may block is called in a thread; what fails raises NaiadError and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from naiad.errors import internal


class Store(Protocol):
    @property
    def location(self) -> str:
        """As the operator wrote it. Also the namespace of its models."""
        ...

    def names(self) -> set[str]:
        """Of the models that are there, as far as is known without asking anybody far away."""
        ...

    def has(self, name: str) -> bool:
        """Is the model there? Does not block."""
        ...

    def directory(self, name: str) -> Path | None:
        """Of a model's files on this machine, fetched if need be; None when the model is not
        there."""
        ...

    def refresh(self, names: Collection[str] | None = None) -> None:
        """Brings the list of models, and the local files of these (None: of all), up to date."""
        ...

    def close(self) -> None:
        """Whatever is still being fetched is not wanted any more."""
        ...


class LocalStore:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    def names(self) -> set[str]:
        """Directories whose name starts with a dot (.git, ..data of a mounted volume) are no
        models."""
        try:
            with os.scandir(self.path) as entries:
                return {
                    entry.name
                    for entry in entries
                    if not entry.name.startswith(".") and _is_directory(entry)
                }
        except OSError as error:
            raise internal(f"failed to open directory {self.path}: {error.strerror}") from error

    def has(self, name: str) -> bool:
        try:
            return (self.path / name).is_dir()
        except (OSError, ValueError):  # a name that no directory can have
            return False

    def directory(self, name: str) -> Path | None:
        return self.path / name if self.has(name) else None

    def refresh(self, names: Collection[str] | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """A link counts as what it points to; a loop or a dangling link as nothing."""
    try:
        return entry.is_dir()
    except OSError:
        return False
