"""One measurement: its child process, what it has printed, and its report.

In:  an order and its command line. Out: a JobView for pages.
Rule: the child has a low priority and dies with the server; its output is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections import deque
from pathlib import Path

import msgspec

from naiad.console.measure.order import REPORT, AnalyzeOrder, Order
from naiad.console.measure.proposal import copy_repository

CHILD_MODULE = "naiad.cli.measure"
NICE = 10
MAX_LINES = 300
MAX_LINE_CHARS = 400
MAX_REPORT_BYTES = 8 << 20
STOP_S = 20.0
"""An analysis stops the server that it has started; after this time the group is killed."""
_READ_BYTES = 1 << 16
_COUNT = re.compile(r"\b(\d+)/(\d+)\b")

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"


class ChildOrder(msgspec.Struct, frozen=True):
    """What the child reads from its standard input, because argv is visible to everybody."""

    parent: int
    nice: int
    shown: list[str]
    """The command line that the report shows."""
    arguments: list[str]
    headers: list[tuple[str, str]]


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    kind: str
    model: str
    state: str
    command: str
    created_s: float
    started_s: float | None
    ended_s: float | None
    progress: float | None
    """From 0 to 1; None where it is not known."""
    line: str
    """What the measurement does now."""
    has_report: bool
    reason: str
    """Why it failed, or what is wrong with the figures; empty otherwise."""
    lines: list[str] = []


class Job:
    def __init__(
        self,
        id: int,
        order: Order,
        shown: list[str],
        arguments: list[str],
        headers: list[tuple[str, str]],
        folder: Path,
        directory: Path,
    ) -> None:
        """`shown` is the command line without the files of the console. `folder` is the job's own
        and `directory` the model's."""
        self.id = id
        self.order = order
        self.folder = folder
        self.directory = directory
        self.replaced: str | None = None
        """The config that the proposal has replaced."""
        self.state = WAITING
        self._shown, self._arguments, self._headers = shown, arguments, headers
        self._created_s = time.time()
        self._started_s: float | None = None
        self._ended_s: float | None = None
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._rest = ""
        self._process: asyncio.subprocess.Process | None = None
        self._code = 0

    @property
    def is_over(self) -> bool:
        return self.state in (DONE, FAILED, CANCELLED)

    @property
    def copy(self) -> Path:
        """The copy of the model's directory that an analysis changes."""
        return self.folder / "repository" / self.order.model

    @property
    def report(self) -> Path | None:
        path = self.folder / REPORT
        return path if path.is_file() and path.stat().st_size <= MAX_REPORT_BYTES else None

    async def run(self) -> None:
        """Returns when the child has ended. Cancelling the task ends the child first."""
        self.state, self._started_s = RUNNING, time.time()
        try:
            self._code = await self._run_child()
        except asyncio.CancelledError:
            if self._process is not None:
                await asyncio.shield(self._end(self._process))
            self._finish(CANCELLED)
            raise
        # A run whose figures are not stable has an exit code of its own, and a report.
        self._finish(DONE if self._code == 0 or self.report is not None else FAILED)

    async def _run_child(self) -> int:
        if isinstance(self.order, AnalyzeOrder):
            await asyncio.to_thread(copy_repository, self.directory.parent, self.copy.parent)
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", CHILD_MODULE,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, cwd=self.folder, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        order = ChildOrder(os.getpid(), NICE, self._shown, self._arguments, self._headers)
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode(order))
            process.stdin.close()
        while chunk := await process.stdout.read(_READ_BYTES):
            self._add(chunk.decode("utf-8", "replace"))
        self._add("\n")
        return await process.wait()

    def fail(self, reason: str) -> None:
        """The child could not be started."""
        self._lines.append(f"error: {reason}"[:MAX_LINE_CHARS])
        self._finish(FAILED)

    def cancel_waiting(self) -> None:
        self._finish(CANCELLED)

    def terminate(self) -> None:
        """Tells the child to end, without waiting: the server stops."""
        if self._process is not None and self._process.returncode is None:
            self._signal(self._process, signal.SIGTERM)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._signal(process, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            self._signal(process, signal.SIGKILL)
            await process.wait()

    def _signal(self, process: asyncio.subprocess.Process, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    def _finish(self, state: str) -> None:
        self.state, self._ended_s = state, time.time()

    def _add(self, text: str) -> None:
        """A carriage return begins a line again: only what is last seen of it stays."""
        *lines, self._rest = (self._rest + text).split("\n")
        self._rest = self._rest[-4 * MAX_LINE_CHARS :]
        for line in lines:
            shown = line.rpartition("\r")[2].rstrip()
            if shown:
                self._lines.append(shown[:MAX_LINE_CHARS])

    def view(self, *, has_lines: bool = False) -> JobView:
        live = self._rest.rpartition("\r")[2].strip()[:MAX_LINE_CHARS]
        line = "" if self.is_over else live or (self._lines[-1] if self._lines else "")
        return JobView(
            id=self.id,
            kind=self._arguments[0],
            model=self.order.model,
            state=self.state,
            command=" ".join(["naiad", *self._shown]),
            created_s=self._created_s,
            started_s=self._started_s,
            ended_s=self._ended_s,
            progress=None if self.is_over else read_progress(live),
            line=line,
            has_report=self.is_over and self.report is not None,
            reason=self._reason(),
            lines=list(self._lines) if has_lines else [],
        )

    def _reason(self) -> str:
        if self.state != FAILED and not self._code:
            return ""
        if self.state == DONE and any("(not stable)" in line for line in self._lines):
            return "the figures of some levels are not stable"
        errors = [line for line in self._lines if line.lower().startswith("error")]
        return (errors or list(self._lines) or ["it ended without a message"])[-1]


def read_progress(line: str) -> float | None:
    """Reads `3/20` from the live line of a measurement."""
    match = _COUNT.search(line)
    if match is None or not int(match[2]):
        return None
    return min(1.0, int(match[1]) / int(match[2]))
