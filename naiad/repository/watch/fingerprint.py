"""Has a model's directory changed? A digest of names, sizes and times, compared between two looks
(poll mode, reload).

In: a model's directory. Out: a Fingerprint; equal ones mean nothing was touched.
Rule: files are not opened, except those that are too young for their time to tell (young_file.py).
      The configuration counts apart from the rest and every version for itself, because a change of
      one of them needs no reload of the others. What Python writes when it imports (__pycache__) is
      no change.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from naiad.repository.scan import CONFIG_FILE
from naiad.repository.watch.recent_change import YoungFiles

CONFIG = "config"
SHARED = "shared"
IGNORED = "__pycache__"


class Fingerprint(msgspec.Struct, frozen=True):
    config: str
    """config.pbtxt and configs/."""
    shared: str
    """What belongs to all versions: labels, warm-up data, initial state, requirements."""
    versions: dict[str, str]
    """By the name of the directory."""

    def of_version(self, version: int) -> str:
        """Of all files that this version is made of, the configuration aside."""
        return f"{self.shared}/{self.versions.get(str(version), '')}"


def fingerprint(model_dir: Path, young: YoungFiles | None = None) -> Fingerprint:
    """`young` is kept from look to look.

    Links are followed, so that a swapped target is a change; a directory reached twice is read
    once, so loops end.
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
                num_changes = (
                    young.num_changes(directory / name, status) if young is not None else 0
                )
                part.append(
                    f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\0{num_changes}\n"
                )
            elif name != IGNORED and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                waiting.append((directory / name, f"{relative}/"))
    digests = {part: _digest(texts) for part, texts in lines.items()}
    return Fingerprint(digests.pop(CONFIG), digests.pop(SHARED), digests)


def merged(one: Fingerprint, other: Fingerprint) -> Fingerprint:
    """Of a model that is in two repositories: changes when either does."""
    versions = {
        f"{at}.{name}": digest
        for at, print_ in enumerate((one, other))
        for name, digest in print_.versions.items()
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
