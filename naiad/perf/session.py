"""Runs `naiad perf`: the run itself, the runs that it is compared with, and the report files."""

from __future__ import annotations

import sys

import msgspec
import uvloop

from naiad.perf.options import PerfOptions, check_options
from naiad.perf.report.compare import comparison_text, parse_rival, rival_options
from naiad.perf.report.perf_page import perf_page
from naiad.perf.report.saved_run import SavedRun, encode_run, read_run, save_run
from naiad.perf.run import UNUSABLE, run_one, write_file
from naiad.settings.option import OptionError
from naiad.tools.report_path import check_file

INTERRUPTED = 130


def run(options: PerfOptions) -> int:
    """Runs the command and returns its exit code. Raises OptionError."""
    for name in ("latency_report_file", "profile_export_file", "json", "html"):
        if getattr(options, name):
            check_file(f"--{name.replace('_', '-')}", getattr(options, name))
    # Everything is read and checked first, so that a wrong option does not cost a measurement.
    rivals = [_rival(options, text) for text in options.compare]
    runs: list[SavedRun] = []
    codes: list[int] = []
    if options.model:
        codes.append(_run_and_append(options, runs, show_label=bool(rivals)))
    for rival in rivals:
        if isinstance(rival, SavedRun):
            runs.append(rival)
        elif INTERRUPTED not in codes:
            codes.append(_run_and_append(rival, runs, show_label=True))
    runs = _distinct(runs)
    if len(runs) > 1:
        print(comparison_text(runs), end="")
    if runs and options.json:
        write_file(options.json, encode_run(runs[0]))
    if runs and options.html:
        write_file(options.html, perf_page(runs))
    return max(codes, default=0)


def _rival(options: PerfOptions, text: str) -> SavedRun | PerfOptions:
    """Returns a saved run, or the options of a run to make. Raises OptionError."""
    rival = parse_rival(text)
    if rival.path is None:
        return check_options(rival_options(options, rival))
    saved = read_run(rival.path)
    return msgspec.structs.replace(saved, label=rival.label) if rival.label else saved


def _run_and_append(options: PerfOptions, runs: list[SavedRun], *, show_label: bool) -> int:
    if show_label:
        print(f"=== {options.label or options.model}")
    try:
        code, result = uvloop.run(run_one(options))
    except OptionError as error:
        if not runs:
            raise
        # What was measured so far is worth more than a clean end.
        print(f"error: {options.label or options.model}: {error}", file=sys.stderr)
        return UNUSABLE
    if result is not None and result.levels:
        runs.append(save_run(options, result.levels))
    return code


def _distinct(runs: list[SavedRun]) -> list[SavedRun]:
    """Numbers the runs that have the same label, so that labels are unique."""
    seen: dict[str, int] = {}
    distinct: list[SavedRun] = []
    for run in runs:
        count = seen[run.label] = seen.get(run.label, 0) + 1
        label = run.label if count == 1 else f"{run.label} ({count})"
        distinct.append(msgspec.structs.replace(run, label=label))
    return distinct
