"""What a store must be able to do, complete with three methods: names, files, bytes. And what is
known about a file there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import msgspec


class RemoteFile(msgspec.Struct, frozen=True):
    path: str
    """Within the repository: `model/1/model.py`. With a slash at its end it is a directory without
    files, as ensembles have them."""
    size: int
    tag: str
    """Changes with the content (ETag, version, git blob)."""
    digest: str = ""
    """Of the content, where the store tells one: `sha256:<hex>` or `git:<hex>`."""

    @property
    def is_directory(self) -> bool:
        return self.path.endswith("/")

    @property
    def id(self) -> str:
        """Of this content at this path. A tag alone is no name: some vendors' tags are only unique
        per path."""
        return hashlib.sha256(
            f"{self.path}\0{self.size}\0{self.tag}".encode("utf-8", "surrogateescape")
        ).hexdigest()


class StoreError(Exception):
    """The store cannot be reached, or refuses. The text is for the log."""


class ChangedError(StoreError):
    """The file is no longer what the listing said."""


class StoppedError(StoreError):
    """We do not want it any more."""


class Bucket(Protocol):
    """Every method blocks and raises StoreError. Paths are relative to the repository."""

    def names(self) -> list[str]:
        """Of the directories at the top."""
        ...

    def files(self, directory: str) -> list[RemoteFile]:
        """All files below a directory at the top, or of the whole repository (""), at any depth."""
        ...

    def read(self, file: RemoteFile, start: int, end: int) -> Iterator[bytes]:
        """Bytes of one range, in chunks. Raises ChangedError."""
        ...
