"""Reads the CPU seconds and the memory of a server and all its children from /proc.

PSS counts a page that n processes share as 1/n in each process, so that the sum over a process tree
counts each page once.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.server.harness import process_tree

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20
_FIELDS = ("Rss", "Pss", "Anonymous", "Pss_Anon", "Pss_Shmem", "Pss_File")


def cpu_seconds(pid: int) -> float:
    """Returns the user and system time of the tree, including children that it has waited for."""
    ticks = 0
    for member in set(process_tree(pid)):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS_PER_S


def memory_bytes(pid: int) -> dict[str, int]:
    """Returns the sums of Rss, Pss and anonymous memory over the tree, and the three parts of Pss:
    anonymous memory, shared memory, and mapped files."""
    total = dict.fromkeys(_FIELDS, 0)
    for member in set(process_tree(pid)):
        for key, value in process_memory_bytes(member).items():
            total[key] += value
    return total


def process_memory_bytes(pid: int) -> dict[str, int]:
    """Returns the same for one process; zeros if it has ended."""
    memory = dict.fromkeys(_FIELDS, 0)
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return memory
    for line in lines[1:]:
        key, value = line.split(":")
        if key in memory:
            memory[key] = int(value.split()[0]) * 1024
    return memory


def num_processes(pid: int) -> int:
    return len(set(process_tree(pid)))
