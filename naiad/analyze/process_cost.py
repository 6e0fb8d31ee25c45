"""Reads the memory and the CPU time of a server process and all its children."""

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
    """Returns the memory of the process tree.

    Uses PSS, which counts shared pages once, if the system provides it, else RSS.
    """
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
