"""The limits of the control group that this process runs in: memory, CPU time, processes.

In:  /proc/self/cgroup and /sys/fs/cgroup, version 2 or 1.
Out: the tightest limit on the way from the process's group to the root, or None without a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from naiad.tools.doctor.host import Host

_UNLIMITED = 1 << 60
"""Version 1 writes "no memory limit" as a number close to 2**63."""


class ControlGroup(msgspec.Struct, frozen=True):
    memory_max: int | None = None
    memory_left: int | None = None
    """Bytes until the tightest group reaches its limit."""
    num_cpus: float | None = None
    num_processes_left: float | None = None


def read_control_group(host: Host) -> ControlGroup:
    controllers = _controllers(host)
    memory = min(
        (
            (limit, limit - (used or 0))
            for limit, used in _memory(host, controllers)
            if limit is not None and limit < _UNLIMITED
        ),
        key=lambda pair: pair[1],
        default=(None, None),
    )
    return ControlGroup(
        memory[0],
        memory[1],
        _least(_cpus(host, controllers)),
        _least(_processes(host, controllers)),
    )


def _controllers(host: Host) -> dict[str, str]:
    """Maps each controller of version 1, and "" for version 2, to the path of this process."""
    controllers: dict[str, str] = {}
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            controllers.update(dict.fromkeys(parts[1].split(","), parts[2]))
    return controllers


def _folders(controllers: dict[str, str], controller: str) -> Iterator[tuple[str, bool]]:
    """Yields (folder, whether it is version 2), from this process's group to the root."""
    for name, base, is_v2 in (
        ("", "/sys/fs/cgroup", True),
        (controller, f"/sys/fs/cgroup/{controller}", False),
    ):
        if name not in controllers:
            continue
        path = controllers[name].strip("/")
        while path:
            yield f"{base}/{path}", is_v2
            path = path.rpartition("/")[0]
        # In a container the group's own folder is often mounted as the root.
        yield base, is_v2


def _memory(host: Host, controllers: dict[str, str]) -> Iterator[tuple[int | None, int | None]]:
    for folder, is_v2 in _folders(controllers, "memory"):
        limit, used = (
            ("memory.max", "memory.current")
            if is_v2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        )
        yield host.read_int(f"{folder}/{limit}"), host.read_int(f"{folder}/{used}")


def _cpus(host: Host, controllers: dict[str, str]) -> Iterator[float | None]:
    for folder, is_v2 in _folders(controllers, "cpu"):
        if is_v2:
            quota, _, period = (host.read(f"{folder}/cpu.max") or "").partition(" ")
            yield int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
        else:
            quota_us = host.read_int(f"{folder}/cpu.cfs_quota_us")
            period_us = host.read_int(f"{folder}/cpu.cfs_period_us")
            yield quota_us / period_us if quota_us and quota_us > 0 and period_us else None


def _processes(host: Host, controllers: dict[str, str]) -> Iterator[float | None]:
    for folder, _ in _folders(controllers, "pids"):
        limit = host.read_int(f"{folder}/pids.max")
        yield None if limit is None else limit - (host.read_int(f"{folder}/pids.current") or 0)


def _least(values: Iterator[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
