"""The models of one --model-repository: a local directory, or a local copy of a remote one
(naiad.stores).

In:  the names of models. Out: their local directories; the rest of the server reads only these.
Rule: methods that may block are called in a thread. A method that fails raises NaiadError and
      changes nothing.
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
        """The repository as the operator wrote it. It is also the namespace of its models."""
        ...

    def names(self) -> set[str]:
        """The names of its models, as far as they are known without a request to a remote
        store."""
        ...

    def has(self, name: str) -> bool:
        """Whether the repository has this model. Does not block."""
        ...

    def directory(self, name: str) -> Path | None:
        """The local directory of a model's files, which are fetched if necessary; None if the
        repository does not have the model."""
        ...

    def failure(self, name: str) -> str:
        """Why the files of the model could not be fetched; empty if they were."""
        ...

    def refresh(self, names: Collection[str] | None = None) -> None:
        """Updates the list of models and the local files of these models (None means all)."""
        ...

    def close(self) -> None:
        """Cancels everything that is being fetched."""
        ...


class LocalStore:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def location(self) -> str:
        return str(self.path)

    def names(self) -> set[str]:
        """Directories whose name starts with a dot are not models (.git, or ..data of a mounted
        volume)."""
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
        except (OSError, ValueError):  # No directory can have this name.
            return False

    def directory(self, name: str) -> Path | None:
        return self.path / name if self.has(name) else None

    def failure(self, name: str) -> str:
        return ""

    def refresh(self, names: Collection[str] | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Follows links. A loop or a dangling link is no directory."""
    try:
        return entry.is_dir()
    except OSError:
        return False
