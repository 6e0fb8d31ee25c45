"""`naiad perf` from options to exit code: the run itself, what it is compared with, and the files
about all of them."""

from __future__ import annotations

import msgspec
import uvloop

from naiad.perf.options import PerfOptions, check_options
from naiad.perf.report.compare import comparison_text, parse_rival, rival_options
from naiad.perf.report.perf_page import perf_page
from naiad.perf.report.saved_run import SavedRun, encode_run, read_run, save_run
from naiad.perf.run import run_one, write_file
from naiad.tools.report_path import check_file

INTERRUPTED = 130


def run(options: PerfOptions) -> int:
    """The whole command. Raises OptionError."""
    for name in ("latency_report_file", "profile_export_file", "json", "html"):
        if getattr(options, name):
            check_file(f"--{name.replace('_', '-')}", getattr(options, name))
    # All is read and checked first: a mistake in the last word must not cost the measurements
    # before it.
    rivals = [_rival(options, text) for text in options.compare]
    runs: list[SavedRun] = []
    codes: list[int] = []
    if options.model:
        codes.append(_run_and_keep(options, runs, show_label=bool(rivals)))
    for rival in rivals:
        if isinstance(rival, SavedRun):
            runs.append(rival)
        elif INTERRUPTED not in codes:
            codes.append(_run_and_keep(rival, runs, show_label=True))
    runs = _distinct(runs)
    if len(runs) > 1:
        print(comparison_text(runs), end="")
    if runs and options.json:
        write_file(options.json, encode_run(runs[0]))
    if runs and options.html:
        write_file(options.html, perf_page(runs))
    return max(codes, default=0)


def _rival(options: PerfOptions, text: str) -> SavedRun | PerfOptions:
    """A run that was saved, or one to make. Raises OptionError."""
    rival = parse_rival(text)
    if rival.path is None:
        return check_options(rival_options(options, rival))
    saved = read_run(rival.path)
    return msgspec.structs.replace(saved, label=rival.label) if rival.label else saved


def _run_and_keep(options: PerfOptions, runs: list[SavedRun], *, show_label: bool) -> int:
    if show_label:
        print(f"=== {options.label or options.model}")
    code, result = uvloop.run(run_one(options))
    if result is not None and result.levels:
        runs.append(save_run(options, result.levels))
    return code


def _distinct(runs: list[SavedRun]) -> list[SavedRun]:
    """Labels tell runs apart, so none may occur twice."""
    seen: dict[str, int] = {}
    found: list[SavedRun] = []
    for run in runs:
        seen[run.label] = seen.get(run.label, 0) + 1
        found.append(
            run
            if seen[run.label] == 1
            else msgspec.structs.replace(run, label=f"{run.label} ({seen[run.label]})")
        )
    return found
