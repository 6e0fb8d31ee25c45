"""The files that a worker is started from, as a worker that cannot be restarted sees them: whether
they are there, and whether they have changed.

In:  the folder of one version of a model. Out: a value that is equal as long as the files are.
Rule: reading blocks on the disk, so it is called in a thread.
"""

from __future__ import annotations

import os
from typing import TypeAlias

Snapshot: TypeAlias = frozenset[tuple[str, int, int]] | None
"""Path, size and time of change of every file; None if the folder is not there."""


def take_snapshot(folder: str) -> Snapshot:
    if not os.path.isdir(folder):
        return None
    entries: set[tuple[str, int, int]] = set()
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            try:
                status = os.stat(path)
            except OSError:  # It was removed meanwhile.
                continue
            entries.add((path, status.st_size, status.st_mtime_ns))
    return frozenset(entries)
