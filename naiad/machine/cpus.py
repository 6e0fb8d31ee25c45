"""Which CPUs this process may use: its affinity, the quota of its control groups, and the NUMA
nodes of the machine."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
NODES = Path("/sys/devices/system/node")
PROCESSORS = Path("/proc/cpuinfo")
BYTE_PRODUCTS = {"avx512_vnni", "avx_vnni"}


def usable_cpus() -> int:
    """The CPUs of the affinity mask, or the quota, rounded up, where that is less."""
    cpus = len(os.sched_getaffinity(0))
    quota = quota_cpus()
    return cpus if quota is None else max(min(cpus, math.ceil(quota)), 1)


def usable_cores() -> list[int]:
    """The numbers of the CPUs in the affinity mask."""
    return sorted(os.sched_getaffinity(0))


def choose_cores(cores: Sequence[int], count: int, name: str, index: int) -> list[int]:
    """Chooses `count` cores for the instance `index` of a group of this name. Instances of a group
    share none while there are enough. The name decides where the group begins, so that models are
    spread over the machine, and a restart chooses the same cores."""
    start = zlib.crc32(name.encode()) + index * count
    return sorted({cores[(start + offset) % len(cores)] for offset in range(count)})


def multiplies_bytes() -> bool:
    """The processor has instructions that multiply bytes and add the products up, and Linux names
    them."""
    try:
        lines = PROCESSORS.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not BYTE_PRODUCTS.isdisjoint(flags.split())


def largest_node_cpus() -> int:
    """The most CPUs of the affinity mask that belong to one NUMA node. All of them where the
    machine does not tell its nodes."""
    allowed = os.sched_getaffinity(0)
    counts = [
        len(allowed.intersection(_parse_list(path.read_text())))
        for path in NODES.glob("node[0-9]*/cpulist")
    ]
    return max(counts, default=0) or len(allowed)


def _parse_list(text: str) -> set[int]:
    """Reads `0-3,8,10-11`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def quota_cpus() -> float | None:
    """The smallest quota of this process's control group and those above it, version 2 or 1.
    Returns None if there is none."""
    quotas = [
        quota for group in _groups() for quota in (_quota_v2(group), _quota_v1(group)) if quota
    ]
    return min(quotas, default=None)


def _groups() -> list[Path]:
    """The folders of the process's control groups and of those above them. A container sees its own
    group as the root."""
    groups = [CGROUPS, CGROUPS / "cpu"]
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        # HIERARCHY:CONTROLLERS:PATH; version 2 names no controllers.
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = CGROUPS / "cpu" if controllers else CGROUPS
        group = root / path.lstrip("/")
        groups += [group, *(parent for parent in group.parents if root in parent.parents)]
    return groups


def _quota_v2(group: Path) -> float | None:
    try:
        limit, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return _quotient(limit, period)


def _quota_v1(group: Path) -> float | None:
    try:
        limit = (group / "cpu.cfs_quota_us").read_text().strip()
        period = (group / "cpu.cfs_period_us").read_text().strip()
    except OSError:
        return None
    return _quotient(limit, period)


def _quotient(limit: str, period: str) -> float | None:
    try:
        return None if limit in ("max", "-1") else int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
