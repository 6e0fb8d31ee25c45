"""Summarizes the samples of a soak as a table and draws them as an SVG.

    python -m bench.soak_report build/soak

In:  samples.csv of bench.mixed_soak, also while it runs.
Out: summary.md and soak.svg next to it. The exit code is 1 if a reading grew.
Rule: a reading has grown if the median of its last quarter is above that of its second quarter by
      more than its allowance. The first quarter is left out of that: caches fill there. Mapped
      files are shown and not judged: their PSS falls while other processes of the machine map the
      same libraries, and rises when those end.
"""

from __future__ import annotations

import csv
import html
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from naiad.tools.page.ticks import linear_ticks, short

MIB = 1 << 20
WIDTH, PANEL, LEFT, RIGHT, TOP, BOTTOM = 760, 170, 62, 16, 30, 34
MAX_POINTS = 600


class Sample(msgspec.Struct, frozen=True):
    time_s: float
    pss_bytes: int
    """PSS of the whole process tree: a page that n processes share counts once."""
    own_bytes: int
    """The part of it that is not mapped files: anonymous and shared memory."""
    server_bytes: int
    """What the server process shares with no other."""
    descriptors: int
    """Open descriptors of the server process."""
    all_descriptors: int
    processes: int
    threads: int
    cpu_s: float
    responses: int
    lost: int
    kills: int
    reloads: int
    violations: int

    def row(self) -> list[float]:
        return [getattr(self, field) for field in FIELDS]


FIELDS = Sample.__struct_fields__


class Reading(msgspec.Struct, frozen=True):
    """A column of the samples and how far it may grow."""

    field: str
    title: str
    unit: int
    allowed: float
    allowed_ratio: float = 0.02
    is_judged: bool = True


READINGS = (
    Reading("own_bytes", "PSS of all processes without mapped files, MiB", MIB, 16.0),
    Reading("pss_bytes", "PSS of all processes with mapped files, MiB", MIB, 16.0, is_judged=False),
    Reading("server_bytes", "private memory of the server, MiB", MIB, 8.0),
    Reading("descriptors", "descriptors of the server", 1, 4.0),
    Reading("all_descriptors", "descriptors of all processes", 1, 16.0),
    Reading("processes", "processes", 1, 2.0),
    Reading("threads", "threads", 1, 4.0),
)


def read_samples(path: Path) -> list[Sample]:
    with path.open(newline="") as table:
        rows = list(csv.DictReader(table))
    return [msgspec.convert(row, Sample, strict=False) for row in rows]


def quarters(values: Sequence[float]) -> list[float]:
    """Returns the medians of the four quarters."""
    size = len(values) / 4
    return [
        statistics.median(values[int(number * size) : max(int((number + 1) * size), 1)])
        for number in range(4)
    ]


def slope_per_hour(times_s: Sequence[float], values: Sequence[float]) -> float:
    return statistics.linear_regression([time / 3600 for time in times_s], values).slope


def has_grown(reading: Reading, medians: Sequence[float]) -> bool:
    allowance = max(reading.allowed, medians[1] * reading.allowed_ratio)
    return medians[3] > medians[1] + allowance


def summarize(samples: Sequence[Sample]) -> tuple[str, bool]:
    """Returns a table in Markdown, and True if nothing grew."""
    last = samples[-1]
    hours = last.time_s / 3600
    lines = [
        f"{hours:.2f} hours: {last.responses:,} checked responses, {last.lost} lost with a killed "
        f"worker, {last.kills} kills, {last.reloads} rounds of reloads, {last.violations} "
        f"violations; the server's processes used {last.cpu_s / last.time_s:.1%} of a core.",
        "",
        "| reading | quarter 1 | quarter 2 | quarter 3 | quarter 4 | max | per hour* | flat |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    is_flat = True
    settled = samples[len(samples) // 4 :]
    for reading in READINGS:
        values = [getattr(sample, reading.field) / reading.unit for sample in samples]
        medians = quarters(values)
        slope = slope_per_hour([sample.time_s for sample in settled], values[len(samples) // 4 :])
        grown = has_grown(reading, medians)
        is_flat = is_flat and not (grown and reading.is_judged)
        cells = " | ".join(f"{value:.1f}" for value in (*medians, max(values)))
        lines.append(f"| {reading.title} | {cells} | {slope:+.2f} | {'NO' if grown else 'yes'} |")
    lines += ["", "\\* the slope of a line through the last three quarters."]
    return "\n".join(lines) + "\n", is_flat


def draw(samples: Sequence[Sample]) -> str:
    """Draws one panel per reading over the minutes of the run."""
    height = PANEL * len(READINGS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Readings of a mixed soak over time" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    step = max(1, len(samples) // MAX_POINTS)
    shown = samples[::step]
    for number, reading in enumerate(READINGS):
        parts += _panel(shown, reading, number * PANEL)
    return "".join([*parts, "</svg>\n"])


def _panel(samples: Sequence[Sample], reading: Reading, top: int) -> list[str]:
    values = [getattr(sample, reading.field) / reading.unit for sample in samples]
    minutes = [sample.time_s / 60 for sample in samples]
    y_ticks, x_ticks = linear_ticks(0, max(values), 4), linear_ticks(0, max(minutes), 8)
    low, high = top + PANEL - BOTTOM, top + TOP

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / x_ticks[-1]

    def y(value: float) -> float:
        return low - (low - high) * value / y_ticks[-1]

    parts = [
        f'<text x="{LEFT}" y="{top + 18}" font-weight="bold">{html.escape(reading.title)}</text>'
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
        f'stroke="#ddd"/><text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end" '
        f'fill="#555">{short(tick)}</text>'
        for tick in y_ticks
    ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{low + 16}" text-anchor="middle" fill="#555">'
        f"{short(tick)} min</text>"
        for tick in x_ticks
    ]
    path = " ".join(
        f"{x(minute):.1f},{y(value):.1f}" for minute, value in zip(minutes, values, strict=True)
    )
    parts.append(f'<polyline points="{path}" fill="none" stroke="#1f6feb" stroke-width="1.2"/>')
    return parts


def write_report(folder: Path) -> bool:
    """Writes both files and prints the table. Returns True if nothing grew."""
    samples = read_samples(folder / "samples.csv")
    text, is_flat = summarize(samples)
    (folder / "summary.md").write_text(text)
    (folder / "soak.svg").write_text(draw(samples))
    print(text, flush=True)
    return is_flat


def main() -> int:
    return 0 if write_report(Path(sys.argv[1])) else 1


if __name__ == "__main__":
    sys.exit(main())
