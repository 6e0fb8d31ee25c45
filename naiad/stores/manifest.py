"""What a cache holds of one repository: the last listing, and the checksum of every file that was
fetched. Kept beside the files.

Rule: read with suspicion. A manifest that cannot be read is an empty one, and a file whose time
      changed is summed again.
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
    """When the store was last asked, as time.time() tells it."""
    models: dict[str, list[RemoteFile]] = {}
    """What was fetched last of each model."""
    names: list[str] = []
    """Of all models that were there, fetched or not."""
    kept: dict[str, Kept] = {}
    """By RemoteFile.id."""

    def age_words(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.checked_at))


def read_manifest(folder: Path, url: str) -> Manifest:
    path = folder / FILE_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest(url=url)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        log.warning(
            f"the cache of '{url}' has no readable manifest ({type(error).__name__}): it is made anew"
        )
        return Manifest(url=url)
    return manifest if manifest.url == url else Manifest(url=url)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_file(folder / FILE_NAME, msgspec.json.encode(manifest))


def is_intact(path: Path, file: RemoteFile, kept: Kept | None) -> bool:
    """Is this still what was fetched? Its sum is taken only when its time has changed since."""
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
    """Is the content what the store says it is, where it says anything?"""
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
