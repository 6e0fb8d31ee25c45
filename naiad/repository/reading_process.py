"""Runs a program that reads files of others, which may be made to crash or to exhaust whoever reads
them.

In:  a module with a main function, and what it gets on its standard input. Out: what it has written
     to its standard output, or NaiadError.
Rule: the limits are set by the parent, before the process has been given anything to read. A limit
      that the system has set already is kept.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from naiad.errors import NaiadError, invalid_arg, unavailable
from naiad.machine.process_tree import die_with_parent

LIMIT_S = 600.0


class Limits(msgspec.Struct, frozen=True):
    """0 is no limit."""

    memory_bytes: int = 0
    cpu_s: int = 0
    wall_s: float = LIMIT_S


class Readers:
    """The processes that read files now, so that the end of the server can end them. Safe in
    threads."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` holds their variables; None means those of this process."""
        self._environment = environment
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self, module: str, request: msgspec.Struct, what: str, limits: Limits | None = None
    ) -> bytes:
        """Raises NaiadError, with a reason that begins with `what`, unless the process ends with
        status 0. `request` becomes JSON."""
        limits = limits or Limits()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
        )
        self._processes.add(process)
        try:
            # It waits for its request meanwhile.
            _limit(process.pid, resource.RLIMIT_DATA, limits.memory_bytes)
            _limit(process.pid, resource.RLIMIT_CPU, limits.cpu_s)
            if self._is_stopped:
                process.kill()
            out, errors = process.communicate(msgspec.json.encode(request), timeout=limits.wall_s)
        except subprocess.TimeoutExpired:
            raise invalid_arg(f"{what} took more than {limits.wall_s:.0f} s") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
            self._processes.discard(process)
        if process.returncode:
            raise _failed(what, process.returncode, errors, limits, is_stopped=self._is_stopped)
        return out

    def stop(self) -> None:
        self._is_stopped = True
        for process in list(self._processes):
            process.kill()


def _limit(pid: int, kind: int, most: int) -> None:
    if most:
        hard = resource.prlimit(pid, kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, kind, (most, most))


def _failed(
    what: str, status: int, errors: bytes, limits: Limits, *, is_stopped: bool
) -> NaiadError:
    lines = errors.decode(errors="replace").strip().splitlines()
    if is_stopped:
        return unavailable(f"{what} was interrupted: the server is stopping")
    if limits.cpu_s and status in (-signal.SIGXCPU, -signal.SIGKILL):
        reason = f"{what} took more than {limits.cpu_s} s of processor time"
    elif limits.memory_bytes and lines and lines[-1].startswith("MemoryError"):
        reason = f"{what} took more than {limits.memory_bytes >> 20} MiB of memory"
    elif status < 0:
        reason = f"{what}: the process was killed by {signal.Signals(-status).name}"
    else:
        reason = lines[-1] if lines else f"{what}: the process exited with status {status}"
    return invalid_arg(reason)


def answer(request_type: Any, handle: Any) -> None:
    """The main function of such a process: reads a request, and writes the result of `handle`. The
    process ends with the thread that waits for it."""
    die_with_parent(os.getppid())
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=request_type)
    # What libraries print must not mix with the result.
    out = os.dup(1)
    os.dup2(2, 1)
    content = msgspec.json.encode(handle(request))
    with os.fdopen(out, "wb") as file:
        file.write(content)
