"""Judges whether a process may be forked after it has imported a model's libraries.

A child has only the thread that forked. It shares open files and their positions with its parent,
and it cannot use the parent's CUDA context.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

TRIAL_LIMIT_S = 10.0
_HARMLESS = ("/dev/null", "/dev/random", "/dev/urandom")


def open_files() -> dict[str, str]:
    """Descriptor -> what it is open for."""
    files: dict[str, str] = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            files[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            pass  # the descriptor of the folder itself
    return files


def unsafe_to_fork(before: dict[str, str]) -> str:
    """Returns the reason, or an empty string if a fork is safe. `before` are the files that were
    open before the imports."""
    opened = [
        name
        for descriptor, name in open_files().items()
        if before.get(descriptor) != name and name not in _HARMLESS
    ]
    if opened:
        return f"the imports left {opened[0]} open"
    if _has_children():
        return "the imports started a process"
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "the imports initialized CUDA"
    if threading.active_count() > 1:
        names = [thread.name for thread in threading.enumerate()]
        return f"the imports started the thread '{names[-1]}'"
    return _trial()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _trial() -> str:
    """Forks once, because some libraries (OpenBLAS) end their threads before a fork and start them
    again when they need them. Threads that are still there afterwards do not know of forks."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    end_s = time.monotonic() + TRIAL_LIMIT_S
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end_s:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "a forked process did not end"
        time.sleep(0.001)
    num_threads = len(os.listdir("/proc/self/task"))
    return "" if num_threads == 1 else f"the imports left {num_threads - 1} threads running"
