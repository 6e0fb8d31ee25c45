"""Applies a Confinement in a new worker: limits on memory and processes, then another user.

It is applied before any code of the model runs, and cannot be undone: the limits are hard, and the
worker gives up the right to change its user.
"""

from __future__ import annotations

import os
import resource

from naiad.ipc.work import Confinement


def confine(confinement: Confinement) -> None:
    """Raises OSError or ValueError if the kernel refuses. The caller must not go on then."""
    if confinement.max_memory_bytes:
        # Not RLIMIT_AS: frameworks reserve address space that they never use.
        _limit(resource.RLIMIT_DATA, confinement.max_memory_bytes)
    if confinement.max_processes:
        _limit(resource.RLIMIT_NPROC, confinement.max_processes)
    if confinement.user is None or confinement.user == os.geteuid():
        return
    os.setgroups(confinement.groups)
    os.setresgid(confinement.group, confinement.group, confinement.group)
    os.setresuid(confinement.user, confinement.user, confinement.user)
    os.environ["HOME"] = confinement.home
    for name in ("USER", "LOGNAME"):
        os.environ[name] = confinement.name or str(confinement.user)


def limit_memory(max_bytes: int) -> None:
    """Applies the limit of a model's own config, which can only lower that of the Confinement. 0
    means no limit."""
    if max_bytes:
        _limit(resource.RLIMIT_DATA, max_bytes)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(kind, (most, most))
