"""Applies a host policy in a worker or a frontend process: on which CPU cores its threads run, and
from which NUMA node its memory comes.

In a worker it is applied before the model is imported, and again before it is loaded, because the
model may have started threads meanwhile. Threads and processes that it starts later inherit both
settings.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

from naiad.errors import invalid_arg
from naiad.ipc.work import LoadArguments

MPOL_BIND = 2
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""The number of the system call, which has no wrapper in the C library."""


def apply_host_policy(arguments: LoadArguments) -> str:
    """Returns what could not be applied on this machine, as text; empty when everything was. Raises
    NaiadError for cores or a node that the machine does not have."""
    return apply_place(arguments.cpu_cores, arguments.numa_node)


def apply_place(cpu_cores: list[int], numa_node: int | None) -> str:
    """Does the same. No cores and no node have no effect."""
    if cpu_cores:
        _run_on(cpu_cores)
    return "" if numa_node is None else _allocate_on(numa_node)


def _run_on(cores: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass  # the thread has just ended
        except OSError as error:
            listed = ",".join(map(str, cores))
            raise invalid_arg(
                f"host policy: cpu-cores {listed} cannot be used on this machine: {error.strerror}"
            ) from error


def _allocate_on(node: int) -> str:
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"numa-node {node}: unknown on {platform.machine()}"
    size = node // 64 + 1
    mask = (ctypes.c_uint64 * size)()
    mask[node // 64] = 1 << node % 64
    # The kernel reads one bit less than it is told.
    if ctypes.CDLL(None, use_errno=True).syscall(number, MPOL_BIND, mask, size * 64 + 1) == 0:
        return ""
    problem = ctypes.get_errno()
    if problem in (errno.EPERM, errno.ENOSYS):
        return f"numa-node {node}: {os.strerror(problem)}"
    raise invalid_arg(
        f"host policy: numa-node {node} cannot be used on this machine: {os.strerror(problem)}"
    )
