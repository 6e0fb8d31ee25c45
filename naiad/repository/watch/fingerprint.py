"""Fingerprints of a model's directory: digests of names, sizes and times that show whether a file
has changed.

In:  a model's directory. Out: a Fingerprint. Equal fingerprints mean that nothing has changed.
Rules: files are not opened, except recently written ones (recent_change.py). The configuration and
       each version have digests of their own, because a change of one version does not reload the
       others. Files that Python writes on import (__pycache__) are ignored.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from naiad.repository.scan import CONFIG_FILE
from naiad.repository.watch.recent_change import RecentChanges

CONFIG = "config"
SHARED = "shared"
IGNORED = "__pycache__"


class Fingerprint(msgspec.Struct, frozen=True):
    config: str
    """config.pbtxt and configs/."""
    shared: str
    """Files that belong to all versions: labels, warm-up data, initial state, requirements."""
    versions: dict[str, str]
    """The name of a version's directory -> its digest."""

    def of_version(self, version: int) -> str:
        """The digest of all files that this version uses, without the configuration."""
        return f"{self.shared}/{self.versions.get(str(version), '')}"


def fingerprint(model_dir: Path, recent: RecentChanges | None = None) -> Fingerprint:
    """`recent` must be the same object in every call for a directory.

    Links are followed, so that a new target is a change. A directory is read only once, so that
    loops of links end.
    """
    lines: dict[str, list[str]] = {CONFIG: [], SHARED: []}
    seen: set[tuple[int, int]] = set()
    waiting = [(model_dir, "")]
    while waiting:
        directory, prefix = waiting.pop()
        for name, status in _listing(directory):
            relative = f"{prefix}{name}"
            part = lines.setdefault(_part(relative, status), [])
            if status is None:
                part.append(f"{relative}\0unreadable\n")
            elif not stat.S_ISDIR(status.st_mode):
                num_changes = recent.count(directory / name, status) if recent is not None else 0
                stamp = f"{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
                part.append(f"{relative}\0{stamp}\0{num_changes}\n")
            elif name != IGNORED and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                waiting.append((directory / name, f"{relative}/"))
    digests = {part: _digest(texts) for part, texts in lines.items()}
    return Fingerprint(digests.pop(CONFIG), digests.pop(SHARED), digests)


def merged(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    """The fingerprint of a model that is in two repositories. It changes when either one does."""
    versions = {
        f"{index}.{name}": digest
        for index, fingerprint in enumerate((one, other))
        for name, digest in fingerprint.versions.items()
    }
    return Fingerprint(one.config + other.config, one.shared + other.shared, versions)


def _part(relative: str, status: os.stat_result | None) -> str:
    top, slash, _ = relative.partition("/")
    if relative == CONFIG_FILE or top == "configs":
        return CONFIG
    is_in_directory = bool(slash) or (status is not None and stat.S_ISDIR(status.st_mode))
    return top if top.isascii() and top.isdigit() and is_in_directory else SHARED


def _digest(lines: list[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(lines):
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _listing(directory: Path) -> list[tuple[str, os.stat_result | None]]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [(name, _status(directory / name)) for name in names]


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
