"""Shows the progress of a download: a bar on a terminal, otherwise a line in the log every few
seconds.

In:  numbers of bytes, from any thread. Out: text for people, not for programs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from naiad import log

LINE_EVERY_S = 5.0


class Progress(Protocol):
    def start(self, title: str, num_bytes: int, num_files: int) -> None: ...

    def advance(self, num_bytes: int) -> None: ...

    def finish(self) -> None: ...


class LogProgress:
    """Logs a line at the start, one every few seconds, and one at the end."""

    def __init__(
        self, write: Callable[[str], None] = log.info, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._now_s = now_s
        self._lock = threading.Lock()
        self._title, self._total, self._done = "", 0, 0
        self._started_s = self._logged_s = 0.0

    def start(self, title: str, num_bytes: int, num_files: int) -> None:
        self._title, self._total, self._done = title, num_bytes, 0
        self._started_s = self._logged_s = self._now_s()
        self._write(f"{title}: fetching {num_files} files, {_size(num_bytes)}")

    def advance(self, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            now_s = self._now_s()
            if now_s - self._logged_s < LINE_EVERY_S:
                return
            self._logged_s = now_s
            percent = 100 * self._done // max(self._total, 1)
            rate = self._done / max(now_s - self._started_s, 0.001)
            self._write(f"{self._title}: {percent}% of {_size(self._total)}, {_size(rate)}/s")

    def finish(self) -> None:
        took_s = self._now_s() - self._started_s
        self._write(f"{self._title}: fetched {_size(self._done)} in {took_s:.1f} s")


class BarProgress:
    """A bar on a terminal, with the library rich."""

    def __init__(self, rich_progress: Any) -> None:
        self._make = rich_progress
        self._bar: Any = None
        self._task: Any = None

    def start(self, title: str, num_bytes: int, num_files: int) -> None:
        self._bar = self._make()
        self._bar.start()
        self._task = self._bar.add_task(f"{title} ({num_files} files)", total=num_bytes)

    def advance(self, num_bytes: int) -> None:
        self._bar.update(self._task, advance=num_bytes)

    def finish(self) -> None:
        self._bar.stop()


def make_progress() -> Progress:
    """A bar if stderr is a terminal and rich is installed, else log lines."""
    if not sys.stderr.isatty():
        return LogProgress()
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress
    except ImportError:
        return LogProgress()

    def bar() -> RichProgress:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        return RichProgress(*columns, console=Console(stderr=True), transient=True)

    return BarProgress(bar)


def _size(num_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
