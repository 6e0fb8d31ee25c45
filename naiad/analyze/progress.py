"""How a search goes: a line for each measurement, and a live one with what runs now and the time
that is left."""

from __future__ import annotations

import time

import click

from naiad.analyze.measurement import Measurement
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
            click.echo(
                f"{num_known} measurements are known from the checkpoint and are not repeated."
            )

    @property
    def left_s(self) -> float:
        if not self._num_done:
            return 0.0
        left = max(1, self._num_planned - self._num_known - self._num_done)
        return left * self._seconds / self._num_done

    def begin(self, what: str) -> None:
        done = self._num_known + self._num_done
        share = done / max(done + 1, self._num_planned)
        left = f"  about {duration(self.left_s)} left" if self._num_done else ""
        self._line.show(f"{bar(share)} {done}/{max(done + 1, self._num_planned)}  {what}{left}")

    def done(self, measurement: Measurement) -> None:
        self._num_done += 1
        self._seconds += measurement.seconds
        self._line.clear()
        load = f"concurrency {measurement.concurrency}" + (
            f", batch {measurement.batch_size}" if measurement.batch_size > 1 else ""
        )
        if measurement.error:
            click.echo(
                f"{measurement.name:32} {load:18} failed: {measurement.error.splitlines()[0]}"
            )
            return
        rate, latency = (
            measurement.figure("perf_throughput") or 0.0,
            measurement.figure("perf_latency_p99") or 0.0,
        )
        mark = "" if measurement.is_stable else "  (not stable)"
        click.echo(
            f"{measurement.name:32} {load:18} {rate:12,.1f} infer/sec  p99 {latency:10,.2f} ms{mark}"
        )

    def end(self) -> None:
        self._line.clear()


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
