"""Ends what dead template processes leave behind: their workers, and the processes that models have
started.

A template does this for its workers (naiad.worker.template). When it is killed itself, the kernel
kills its workers, and everything that they leave becomes a child of the server.
Rule: the server has other children, such as installers, that must not be touched. What comes from
      a template is known by an environment variable that names the server, because a process hands
      its environment down.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable

from naiad.core.process_tree import adopt_orphans, children, kill_with_group

MARK = "NAIAD_WORKER_OF"
"""The environment variable of templates and of everything below them: the server's process id."""
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 10.0
END_LIMIT_S = 2.0


class Orphans:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        adopt_orphans()
        self._loop = loop
        self._mark = f"{MARK}={os.getpid()}".encode()
        self._condemned: set[int] = set()
        """Children that must end and that nobody has waited for."""
        self.templates: set[int] = set()
        """The process ids of the templates that live."""

    def end_all(self, workers: Iterable[int]) -> None:
        """Call it when a template has died. `workers` are the process ids of its workers."""
        self._condemned.update(workers)
        self._look(FIRST_LOOK_S)

    def _look(self, delay_s: float) -> None:
        """Looks again, ever less often, as long as something is left."""
        if self._end_condemned() and delay_s <= LAST_LOOK_S:
            self._loop.call_later(delay_s, self._look, 2 * delay_s)

    def end_all_now(self) -> None:
        """Blocks for a moment; for the end of the server."""
        end_s = time.monotonic() + END_LIMIT_S
        while self._end_condemned() and time.monotonic() < end_s:
            time.sleep(FIRST_LOOK_S / 10)

    def _end_condemned(self) -> int:
        """Kills the orphans and waits for those that have ended. Returns how many are left: their
        own children become children of the server as they die."""
        own = set(children())
        self._condemned &= own
        self._condemned |= {
            pid for pid in own - self._condemned - self.templates if self._is_marked(pid)
        }
        for pid in list(self._condemned):
            kill_with_group(pid)
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                self._condemned.remove(pid)
        return len(self._condemned)

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                return self._mark in environ.read().split(b"\0")
        except OSError:
            return False
