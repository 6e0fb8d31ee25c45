"""Parents and children of processes on Linux: who dies with whom, and who adopts orphans.

Python's standard library has no prctl, so it is called through the C library.
Rule: no function here waits for a process; the caller does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Makes the kernel send `number` to this process when the thread that started it ends.
    `parent` is the process id of the parent, for a parent that has ended before.

    The kernel forgets the signal when the process changes its user, so call this afterwards.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of its descendants whose own parent ends. Without this they
    become children of init, where nobody ends them."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """The children of this process, dead ones that nobody has waited for included. A child that
    starts or ends meanwhile may be missing."""
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        # A kernel without CONFIG_PROC_CHILDREN.
        own = os.getpid()
        return [
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit() and _parent(int(entry)) == own
        ]
    pids: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),  # it has just ended
            open(f"/proc/self/task/{thread}/children") as listing,
        ):
            pids += map(int, listing.read().split())
    return pids


def _parent(pid: int) -> int:
    """Returns 0 if there is no such process."""
    return int(_stat(pid)[1])


def is_zombie(pid: int) -> bool:
    """The process has ended, and nobody has waited for it."""
    return _stat(pid)[0] == b"Z"


def is_stopped(pid: int, *, counts_traced: bool = True) -> bool:
    """A signal or a terminal has stopped the process, or a debugger holds it."""
    return _stat(pid)[0] in ((b"T", b"t") if counts_traced else (b"T",))


def _stat(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name: the state, the parent, ..."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return [b"", b"0"]


def kill_with_group(pid: int) -> None:
    """Kills a child and, if it leads a process group, the group.

    Call it before the child is waited for: until then its number cannot belong to another process.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def end_children(keep: Collection[int] = ()) -> int:
    """Kills every child that is not in `keep`, waits for those that have ended, and returns how
    many have not. Each of these sends SIGCHLD when it has; call this again then, because its own
    children have become children of this process."""
    while True:
        num_reaped = num_left = 0
        for pid in children():
            if pid not in keep:
                kill_with_group(pid)
                if is_reaped(pid):
                    num_reaped += 1
                else:
                    num_left += 1
        if not num_reaped:
            return num_left


def is_reaped(pid: int) -> bool:
    """Waits for a child if it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
