"""Hides secrets from /proc: every process of the same user can read the environment with which this
one was started (/proc/PID/environ), and everybody can read its command line (/proc/PID/cmdline).

Both files show memory of the process, in which the secrets are overwritten here. What the process
itself reads, os.environ and getenv, stays as it was.
Rule: this is for accidents and curious models. A process of the same user that may trace this one
      can still read its memory; another user for workers prevents that.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

ARG_START, ARG_END, ENV_START, ENV_END = 48, 49, 50, 51
"""Fields of /proc/PID/stat, counted from 1 as in proc(5)."""


def hide_variables(names: Iterable[str]) -> None:
    region = _region(ENV_START, ENV_END)
    for name in names:
        if name in os.environ:
            # A copy on the heap, so that the C library does not read what is overwritten.
            os.environ[name] = os.environ[name]
            entry = f"{name}={os.environ[name]}".encode("utf-8", "surrogateescape")
            _overwrite(region, entry, len(name) + 1)


def hide_arguments(secrets: Iterable[str]) -> None:
    """`secrets` are arguments, or the ends of arguments such as VALUE of `--flag=KEY=VALUE`."""
    region = _region(ARG_START, ARG_END)
    for secret in filter(None, secrets):
        for before in (b"=", b"\0"):
            _overwrite(region, before + secret.encode("utf-8", "surrogateescape"), 1)


def _region(start: int, end: int) -> tuple[int, int]:
    """The addresses of a region of this process; (0, 0) if the kernel does not tell."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        return int(fields[start - 3]), int(fields[end - 3])
    except (OSError, IndexError, ValueError):
        return 0, 0


def _overwrite(region: tuple[int, int], text: bytes, num_kept: int) -> None:
    """Overwrites every occurrence of `text` that ends a string, except its first bytes."""
    start, end = region
    if start >= end:
        return
    memory = ctypes.string_at(start, end - start)
    position = memory.find(text + b"\0")
    while position >= 0:
        ctypes.memset(start + position + num_kept, ord("*"), len(text) - num_kept)
        position = memory.find(text + b"\0", position + 1)
