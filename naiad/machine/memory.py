"""How much memory the server may use: that of the machine, or of the container that it runs in."""

from __future__ import annotations

import os
from pathlib import Path


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Returns the smallest limit of the process's control groups, or the machine's memory if that
    is less. `root` is where /proc and /sys are."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits(root)]
    return min(limits)


def _group_limits(root: Path) -> list[int]:
    limits: list[int] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":  # version 2
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the group's path is often that of the host, so every parent is tried.
        folder = Path(group.lstrip("/"))
        for part in (folder, *folder.parents):
            text = _read(top / part / name).strip()
            if text.isdigit():
                limits.append(int(text))
    return limits


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
