"""What a server process and all its children cost: memory now, processor time so far. For a server
that we started ourselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil


def _tree(pid: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def memory_bytes(pid: int) -> float:
    """Shared pages are counted once over the tree where the system can tell (PSS), else each
    process's own."""
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            info = process.memory_full_info()
            total += getattr(info, "pss", 0) or info.rss
    return total


def cpu_seconds(pid: int) -> float:
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            total += times.user + times.system
    return total
