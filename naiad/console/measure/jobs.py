"""The measurements of this server: one runs at a time, others wait in order.

In:  orders. Out: jobs; their folders are temporary and end with the server.
Rule: the number of jobs that wait and of reports that are kept is bounded.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import traceback
from pathlib import Path

from naiad import log
from naiad.console.measure.job import WAITING, Job
from naiad.errors import Code, NaiadError, not_found

MAX_WAITING = 10
MAX_KEPT = 20


class Jobs:
    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}
        self._ids = itertools.count(1)
        self._folder: Path | None = None
        self._task: asyncio.Task[None] | None = None
        self._running: Job | None = None

    def all(self) -> list[Job]:
        """The latest first."""
        return list(reversed(self._jobs.values()))

    def find(self, id: int) -> Job:
        """Raises NaiadError."""
        if id not in self._jobs:
            raise not_found(f"there is no measurement {id}")
        return self._jobs[id]

    def check_room(self) -> None:
        """Raises NaiadError."""
        if sum(job.state == WAITING for job in self._jobs.values()) >= MAX_WAITING:
            raise NaiadError(
                Code.UNAVAILABLE, f"{MAX_WAITING} measurements wait already, no more are possible"
            )

    def new_folder(self) -> tuple[int, Path]:
        """The id and the folder of the next job."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="naiad-measure-"))
        id = next(self._ids)
        folder = self._folder / str(id)
        folder.mkdir()
        return id, folder

    def add(self, job: Job) -> None:
        self._jobs[job.id] = job
        over = [old for old in self._jobs.values() if old.is_over]
        for old in over[: max(0, len(self._jobs) - MAX_KEPT)]:
            self.remove(old)
        self._start_next()

    def remove(self, job: Job) -> None:
        """Forgets a job that is over, and deletes its report."""
        del self._jobs[job.id]
        shutil.rmtree(job.folder, ignore_errors=True)

    def cancel(self, job: Job) -> None:
        if job is self._running and self._task is not None:
            self._task.cancel()
        elif job.state == WAITING:
            job.cancel_waiting()

    def stop(self) -> None:
        """The server stops: the child gets SIGTERM, and the kernel sends it again if it must."""
        if self._running is not None:
            self._running.terminate()
        if self._task is not None:
            self._task.remove_done_callback(self._on_done)
            self._task.cancel()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start_next(self) -> None:
        if self._running is not None:
            return
        job = next((job for job in self._jobs.values() if job.state == WAITING), None)
        if job is not None:
            self._running = job
            self._task = asyncio.get_running_loop().create_task(job.run())
            self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        job, self._running, self._task = self._running, None, None
        fault = None if task.cancelled() else task.exception()
        if fault is not None and job is not None:
            job.fail(f"{type(fault).__name__}: {fault}")
            text = "".join(traceback.format_exception(fault))
            log.error(f"measurement {job.id} could not run: {fault}", text)
        self._start_next()
