"""Has a model's directory changed? A digest of names, sizes and times, compared between two looks (poll mode, reload).

In: a model's directory. Out: a Fingerprint; equal ones mean nothing was touched.
Rule: files are never opened. The configuration counts apart from the rest, because a change of it alone may not need a reload.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from naiad.repository.scan import CONFIG_FILE


class Fingerprint(msgspec.Struct, frozen=True):
    config: str
    """config.pbtxt and configs/."""
    files: str
    """Everything else in the model's directory, all versions."""


def fingerprint(model_dir: Path) -> Fingerprint:
    """Links are followed, so that a swapped target is a change; a directory reached twice is read once, so loops end."""
    config = hashlib.blake2b(digest_size=16)
    files = hashlib.blake2b(digest_size=16)
    seen: set[tuple[int, int]] = set()
    waiting = [(model_dir, "")]
    while waiting:
        directory, prefix = waiting.pop()
        for name, status in _listing(directory):
            relative = f"{prefix}{name}"
            if status is None:
                files.update(f"{relative}\0unreadable\n".encode("utf-8", "surrogateescape"))
            elif _is_directory(status):
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    waiting.append((directory / name, f"{relative}/"))
            else:
                digest = config if relative == CONFIG_FILE or relative.startswith("configs/") else files
                line = f"{relative}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
    return Fingerprint(config.hexdigest(), files.hexdigest())


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


def _is_directory(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)
