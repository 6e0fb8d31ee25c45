"""The interface of a remote store, complete with three methods: names, files, bytes. And what is
known about a remote file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import msgspec


class RemoteFile(msgspec.Struct, frozen=True):
    path: str
    """The path within the repository: `model/1/model.py`. A path that ends with a slash is an empty
    directory, as ensembles have them."""
    size: int
    tag: str
    """A value that changes with the content: an ETag, a version or a git blob."""
    digest: str = ""
    """The digest of the content, if the store has one: `sha256:<hex>` or `git:<hex>`."""

    @property
    def is_directory(self) -> bool:
        return self.path.endswith("/")

    @property
    def id(self) -> str:
        """Identifies this content at this path. The tag alone is not enough: with some vendors,
        tags are only unique per path."""
        return hashlib.sha256(
            f"{self.path}\0{self.size}\0{self.tag}".encode("utf-8", "surrogateescape")
        ).hexdigest()


class StoreError(Exception):
    """The store cannot be reached, or refuses a request. The message is for the log."""


class ChangedError(StoreError):
    """The file has changed since it was listed."""


class StoppedError(StoreError):
    """The download was cancelled."""


class Bucket(Protocol):
    """Every method blocks and raises StoreError. Paths are relative to the repository."""

    def names(self) -> list[str]:
        """The names of the top-level directories."""
        ...

    def files(self, directory: str) -> list[RemoteFile]:
        """All files below a top-level directory, at any depth. An empty name means the whole
        repository."""
        ...

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """The bytes of one range, in chunks. Raises ChangedError."""
        ...
