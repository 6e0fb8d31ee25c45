"""Shows the progress of a search.

Each measurement prints one line. A live line shows the running measurement and the remaining time.
"""

from __future__ import annotations

import time

import click

from naiad.analyze.measurement import Measurement, load_text
from naiad.perf.report.progress import LiveLine, bar


class SearchProgress:
    def __init__(self, line: LiveLine, title: str, num_planned: int, num_known: int) -> None:
        self._line = line
        self._num_planned = num_planned
        self._num_done = 0
        self._num_known = num_known
        self._seconds = 0.0
        self._started = time.monotonic()
        click.echo(f"=== {title}")
        if num_known:
            click.echo(f"The checkpoint has {num_known} measurements, which are not repeated.")

    @property
    def remaining_s(self) -> float:
        if not self._num_done:
            return 0.0
        remaining = max(1, self._num_planned - self._num_known - self._num_done)
        return remaining * self._seconds / self._num_done

    def begin(self, description: str) -> None:
        done = self._num_known + self._num_done
        total = max(done + 1, self._num_planned)
        remaining = f"  about {duration(self.remaining_s)} left" if self._num_done else ""
        self._line.show(f"{bar(done / total)} {done}/{total}  {description}{remaining}")

    def stage(self, text: str) -> None:
        """Announces the next stage of the analysis."""
        self._line.clear()
        click.echo(text)

    def done(self, measurement: Measurement) -> None:
        self._num_done += 1
        self._seconds += measurement.seconds
        self._line.clear()
        load = load_text(measurement.load)
        if measurement.round:
            load += f", round {measurement.round}"
        if measurement.error:
            click.echo(
                f"{measurement.name:32} {load:18} failed: {measurement.error.splitlines()[0]}"
            )
            return
        rate = measurement.figure("perf_throughput") or 0.0
        latency = measurement.figure("perf_latency_p99") or 0.0
        figures = f"{rate:12,.1f} infer/sec  p99 {latency:10,.2f} ms"
        mark = "" if measurement.is_stable else "  (not stable)"
        click.echo(f"{measurement.name:32} {load:18} {figures}{mark}")

    def end(self) -> None:
        self._line.clear()


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
