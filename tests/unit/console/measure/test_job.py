"""The output of a measurement: bounded, and with the progress that its live line shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.console.measure.job import MAX_LINE_CHARS, MAX_LINES, Job, read_progress
from naiad.console.measure.order import PerfOrder


def job(folder: Path) -> Job:
    return Job(1, PerfOrder(model="m"), ["perf"], ["perf"], [], folder, folder)


def test_a_live_line_replaces_itself_and_is_not_kept(tmp_path: Path) -> None:
    made = job(tmp_path)
    made._add("first\nwindow 1/4\rwindow 2/4")
    view = made.view(has_lines=True)
    assert (view.lines, view.line, view.progress) == (["first"], "window 2/4", 0.5)
    made._add("\r          \rsecond\n")
    assert made.view(has_lines=True).lines == ["first", "second"]


def test_output_is_bounded(tmp_path: Path) -> None:
    made = job(tmp_path)
    made._add("x" * 100_000)
    made._add("\n" + "y\n" * 1000)
    lines = made.view(has_lines=True).lines
    assert len(lines) == MAX_LINES
    assert max(map(len, lines)) <= MAX_LINE_CHARS


@pytest.mark.parametrize(
    ("line", "progress"),
    [("░░ 0/72  default", 0.0), ("", None), ("0/0", None), ("5/4", 1.0), ("542/s", None)],
)
def test_progress_is_read_from_a_count(line: str, progress: float | None) -> None:
    assert read_progress(line) == progress
