"""Shows live progress: one line on stderr that is rewritten while a window runs.

Out: text on a terminal, and nothing elsewhere, so that logs and pipes stay clean. With -v each
     window also prints a line on stdout.
"""

from __future__ import annotations

import sys
import time
from typing import TextIO

from naiad.perf.load.level import Level
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.stability import Point

_BAR = 20
_MIN_REDRAW_S = 0.1


class LiveLine:
    """A line that is overwritten. Shows nothing unless `is_live` is set."""

    def __init__(self, is_live: bool, out: TextIO | None = None) -> None:
        self.is_live = is_live
        self._out = out or sys.stderr
        self._shown = 0
        self._next_draw = 0.0

    def show(self, text: str) -> None:
        now = time.monotonic()
        if not self.is_live or now < self._next_draw:
            return
        self._next_draw = now + _MIN_REDRAW_S
        self._out.write("\r" + text.ljust(self._shown))
        self._out.flush()
        self._shown = len(text)

    def clear(self) -> None:
        if self.is_live and self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
            self._out.flush()
            self._shown = 0
        self._next_draw = 0.0


def wants_live(when: str) -> bool:
    return when == "on" or (when == "auto" and sys.stderr.isatty())


def bar(fraction: float, width: int = _BAR) -> str:
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "█" * filled + "░" * (width - filled)


class PerfProgress:
    """The watcher of `naiad perf`."""

    def __init__(
        self, line: LiveLine, *, is_verbose: bool, latency_name: str, out: TextIO | None = None
    ) -> None:
        self._line = line
        self._is_verbose = is_verbose
        self._latency_name = latency_name
        self._out = out or sys.stdout
        self._last: Point | None = None
        self._seen: tuple[float, int] = (0.0, 0)
        self._rate = 0.0

    def begin(self, level: Level) -> None:
        self._last = None
        self._seen = (0.0, 0)
        self._out.write(level.heading + "\n")
        self._out.flush()

    def progress(
        self, level: Level, trial: int, max_trials: int, fraction: float, num_ended: int
    ) -> None:
        if not self._line.is_live:
            return
        now = time.monotonic()
        before, count = self._seen
        if now - before > 0.5:
            self._rate = (num_ended - count) / (now - before) if before else 0.0
            self._seen = (now, num_ended)
        last = (
            f"  last window {self._last.infer_per_s:,.0f}/s, {self._last.latency_us:,.0f} us"
            if self._last is not None
            else ""
        )
        window = f"window {trial}/{max_trials} {bar(fraction)}"
        self._line.show(f"{level.label}  {window}  {self._rate:,.0f} requests/s{last}")

    def window(self, level: Level, trial: int, point: Point) -> None:
        self._last = point
        self._line.clear()
        if self._is_verbose:
            failed = f" {point.num_failures} failed." if point.num_failures else ""
            rate = f"throughput: {point.infer_per_s:.6g} infer/sec."
            latency = f"{self._latency_name}: {point.latency_us:.0f} usec"
            self._out.write(f"  Pass [{trial}] {rate} {latency}{failed}\n")
            self._out.flush()

    def end(self, result: LevelResult) -> None:
        self._line.clear()
