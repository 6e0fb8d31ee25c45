"""The contents of a repository's cache: the last listing, and the checksum of every file that was
fetched. The manifest is stored next to the files.

Rule: the manifest is not trusted. If it cannot be read, the cache counts as empty; if the time of a
      file has changed, its checksum is computed again.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from naiad import log
from naiad.files.private_folder import is_trusted_file, write_file
from naiad.stores.bucket import RemoteFile

FILE_NAME = "manifest.json"
BLOCK_BYTES = 1 << 22


class Kept(msgspec.Struct):
    """A file in the cache."""

    sha256: str
    mtime_ns: int


class Manifest(msgspec.Struct):
    url: str = ""
    checked_at: float = 0.0
    """The time of the last listing, in seconds since the epoch."""
    models: dict[str, list[RemoteFile]] = {}
    """Each model -> the files that were fetched last."""
    names: list[str] = []
    """The names of all models in the store, fetched or not."""
    kept: dict[str, Kept] = {}
    """RemoteFile.id -> the cached file."""

    def checked_at_text(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.checked_at))


def read_manifest(folder: Path, url: str) -> Manifest | None:
    """Returns None if there is none that can be used."""
    path = folder / FILE_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning(
            f"the cache of '{url}' has no readable manifest ({type(error).__name__}): it "
            "starts empty"
        )
        return None
    return manifest if manifest.url == url else None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_file(folder / FILE_NAME, msgspec.json.encode(manifest))


def is_intact(path: Path, file: RemoteFile, kept: Kept | None) -> bool:
    """Whether the file is still what was fetched. The checksum is computed only if the file's time
    has changed."""
    if kept is None or not is_trusted_file(path, file.size):
        return False
    return path.stat().st_mtime_ns == kept.mtime_ns or file_sum(path) == kept.sha256


def file_sum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def has_digest(path: Path, file: RemoteFile, sha256: str) -> bool:
    """Whether the content matches the digest of the store. True if the store has none."""
    kind, _, expected = file.digest.partition(":")
    if kind == "sha256":
        return sha256 == expected
    if kind == "git":
        digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
        with path.open("rb") as content:
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
        return digest.hexdigest() == expected
    return True
