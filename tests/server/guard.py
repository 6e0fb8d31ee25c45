"""Ends what the tests have started when they are killed themselves: a process of its own, which
outlives them and sees their end.

One per test process, started with its first server. Its standard input is a pipe: `+N` names a
process group, `-N` forgets it, and the end of the pipe means that nobody is left who would end
them. A parent-death signal would not do: it belongs to the thread that starts a process, and comes
when that thread ends.
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
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        self._say(f"-{group}")

    def _say(self, line: str) -> None:
        with self._lock:
            if self._pipe is None:
                self._pipe = _start()
            with contextlib.suppress(BrokenPipeError):  # somebody has ended it
                self._pipe.write(line.encode() + b"\n")


def _start() -> IO[bytes]:
    """In a session of its own: what ends the tests by a signal to their group does not reach it."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )
    process.returncode = 0  # it ends after us: nobody waits for it
    assert process.stdin is not None
    return process.stdin


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line[1:])
        groups.add(number) if line[0] == "+" else groups.discard(number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
