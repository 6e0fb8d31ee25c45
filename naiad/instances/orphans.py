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

from naiad.machine.process_tree import (
    adopt_orphans,
    children,
    is_reaped,
    is_zombie,
    kill_with_group,
)

MARK = "NAIAD_WORKER_OF"
"""The environment variable of templates and of everything below them: the server's process id."""
FIRST_LOOK_S = 0.02
LAST_LOOK_S = 10.0
END_LIMIT_S = 2.0
ZOMBIE_AGE_S = 1.0


class Orphans:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        adopt_orphans()
        self._loop = loop
        self._mark = f"{MARK}={os.getpid()}".encode()
        self._condemned: set[int] = set()
        """Children that must end and that nobody has waited for."""
        self._groups: set[int] = set()
        """The process groups of those, also when they have ended: their members die with them, and
        a dead process has no environment by which to know it."""
        self._zombies: dict[int, float] = {}
        """Dead children that nobody has waited for, and since when they are known."""
        self.templates: set[int] = set()
        """The process ids of the templates that live."""

    def end_all(self, workers: Iterable[int]) -> None:
        """Call it when a template has died. `workers` are the process ids of its workers."""
        self._condemned.update(workers)
        self._groups |= self._condemned
        self._look(FIRST_LOOK_S)

    def _look(self, delay_s: float) -> None:
        """Looks again, ever less often, as long as something is left."""
        is_done = not self._end_condemned()
        if (self._has_zombies() or not is_done) and delay_s <= LAST_LOOK_S:
            self._loop.call_later(delay_s, self._look, 2 * delay_s)

    def end_all_now(self) -> None:
        """Blocks for a moment; for the end of the server."""
        end_s = time.monotonic() + END_LIMIT_S
        while self._end_condemned() and time.monotonic() < end_s:
            time.sleep(FIRST_LOOK_S / 10)

    def _end_condemned(self) -> bool:
        """Kills the orphans and waits for those that have ended. Returns False if there were none:
        until then more may come, because their own children become children of the server as they
        die."""
        own = set(children())
        self._condemned &= own
        self._condemned |= {
            pid for pid in own - self._condemned - self.templates if self._is_marked(pid)
        }
        self._groups = self._groups | self._condemned if self._condemned else set()
        found = list(self._condemned)
        for pid in found:
            kill_with_group(pid)
            if is_reaped(pid):
                self._condemned.remove(pid)
        return bool(found)

    def _has_zombies(self) -> bool:
        """Waits for orphans that were dead before they could be known. Whoever starts a process in
        the server waits for it, so one that nobody has waited for in a while is an orphan."""
        now_s = self._loop.time()
        pids = set(children()) - self._condemned - self.templates
        self._zombies = {pid: self._zombies.get(pid, now_s) for pid in pids if is_zombie(pid)}
        for pid, since_s in self._zombies.items():
            if now_s - since_s > ZOMBIE_AGE_S:
                is_reaped(pid)
        return bool(self._zombies)

    def _is_marked(self, pid: int) -> bool:
        try:
            if os.getpgid(pid) in self._groups:
                return True
            with open(f"/proc/{pid}/environ", "rb") as environ:
                return self._mark in environ.read().split(b"\0")
        except OSError:
            return False
