"""Detects changes of recently written files, whose modification time may not show the next change.

A file system's clock moves in ticks: milliseconds on a local disk, a second or two on FAT, on some
network file systems and on mounted buckets. Two writes within one tick leave the same time.
In:  the path and status of a file. Out: a number that grows when the content has changed although
     size, time and inode are the same.
Rule: only files that are recent, or were recent at the last call, are opened; large files never
      are.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

TICK_NS = 3_000_000_000
MAX_BYTES = 16 << 20

Stamp = tuple[int, int, int]


class _RecentFile(msgspec.Struct):
    stamp: Stamp
    digest: bytes | None
    """None if the file is no longer recent: its modification time shows every further change."""
    num_changes: int = 0


class RecentChanges:
    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._known: dict[Path, _RecentFile] = {}

    def count(self, path: Path, status: os.stat_result) -> int:
        """The number of changes so far that only the content has shown."""
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        is_recent = (
            abs(self._clock_ns() - status.st_mtime_ns) < TICK_NS
            and status.st_size <= MAX_BYTES
            and stat.S_ISREG(status.st_mode)
        )
        with self._lock:
            known = self._known.get(path)
            if known is None or known.stamp != stamp:
                self._known.pop(path, None)
                if is_recent:
                    self._known[path] = _RecentFile(stamp, _digest(path))
                return 0
            if known.digest is not None:
                self._compare(path, known, is_recent=is_recent)
            return known.num_changes

    def _compare(self, path: Path, known: _RecentFile, *, is_recent: bool) -> None:
        digest = _digest(path)
        if digest != known.digest:
            known.num_changes += 1
        known.digest = digest if is_recent else None
        if not is_recent and not known.num_changes:
            del self._known[path]


def _digest(path: Path) -> bytes:
    """Empty for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""
