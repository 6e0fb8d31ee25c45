"""What a server and all its children cost: CPU seconds so far, memory now. Read from /proc, for any
server.

PSS counts a page that n processes share as 1/n in each, so that its sum over a tree is what the
tree really holds.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.server.harness import process_tree

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def cpu_seconds(pid: int) -> float:
    """User and system time of the living tree, and of children that it has waited for."""
    ticks = 0
    for member in set(process_tree(pid)):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


def memory_bytes(pid: int) -> dict[str, int]:
    """Sums over the tree of Rss, Pss and anonymous memory."""
    total = {"Rss": 0, "Pss": 0, "Anonymous": 0}
    for member in set(process_tree(pid)):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines[1:]:
            key, value = line.split(":")
            if key in total:
                total[key] += int(value.split()[0]) * 1024
    return total


def num_processes(pid: int) -> int:
    return len(set(process_tree(pid)))
