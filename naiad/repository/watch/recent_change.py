"""Files looked at so soon after they were written that the next change may leave their time as it
is: their content is remembered.

A file system's clock moves in ticks: milliseconds on a local disk, a second or two on FAT, on some
network file systems and on mounted buckets. In: files as fingerprints see them. Out: a number that
grows when a file has changed and neither its size, its time nor its inode tell. Rule: only files
that are young, or were at the last look, are opened, and no large ones.
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


class _Young(msgspec.Struct):
    stamp: Stamp
    digest: bytes | None
    """None when it has come of age: from then on a change shows in its time."""
    num_changes: int = 0


class YoungFiles:
    def __init__(self, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._known: dict[Path, _Young] = {}

    def num_changes(self, path: Path, status: os.stat_result) -> int:
        """So many that nothing but the content showed."""
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        is_young = (
            abs(self._clock_ns() - status.st_mtime_ns) < TICK_NS
            and status.st_size <= MAX_BYTES
            and stat.S_ISREG(status.st_mode)
        )
        with self._lock:
            known = self._known.get(path)
            if known is None or known.stamp != stamp:
                self._known.pop(path, None)
                if is_young:
                    self._known[path] = _Young(stamp, _digest(path))
                return 0
            if known.digest is not None:
                self._look_again(path, known, is_young=is_young)
            return known.num_changes

    def _look_again(self, path: Path, known: _Young, *, is_young: bool) -> None:
        digest = _digest(path)
        if digest != known.digest:
            known.num_changes += 1
        known.digest = digest if is_young else None
        if not is_young and not known.num_changes:
            del self._known[path]


def _digest(path: Path) -> bytes:
    """One that cannot be read has none, which is as good as any."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""
