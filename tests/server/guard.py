"""A process that ends the servers of the tests if the tests themselves are killed.

There is one guard per test process, started with its first server. Its standard input is a pipe:
`+N` adds a process group, `-N` removes it, and at the end of the pipe the guard kills the groups
that remain. A parent-death signal would not work: it is sent when the thread that started the
process ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import IO


class Guard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: IO[bytes] | None = None

    def watch(self, group: int) -> None:
        self._send(f"+{group}")

    def forget(self, group: int) -> None:
        self._send(f"-{group}")

    def _send(self, line: str) -> None:
        with self._lock:
            if self._pipe is None:
                self._pipe = _start()
            with contextlib.suppress(BrokenPipeError):  # The guard itself was killed.
                self._pipe.write(line.encode() + b"\n")


def _start() -> IO[bytes]:
    """Starts the guard in its own session, so that a signal to the group of the tests does not
    reach it."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    process.returncode = 0  # It ends after this process, so Popen must not expect a wait.
    assert process.stdin is not None
    return process.stdin


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line[1:])
        if line[0] == "+":
            groups.add(number)
        else:
            groups.discard(number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
