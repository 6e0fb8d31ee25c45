"""Compares several models, servers or earlier runs in one table and one chart, for `--compare`.

In:  runs; the others are compared with the first. Out: text for the terminal. perf_page.py shows
     the same as HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from naiad.perf.measure.window import Summary
from naiad.perf.options import PerfOptions
from naiad.perf.report.progress import bar
from naiad.perf.report.saved_run import SavedLevel, SavedRun
from naiad.settings.option import OptionError
from naiad.tables import render_table

_BAR_WIDTH = 40


class Rival(msgspec.Struct, frozen=True):
    """One value of --compare: a file, or the flags in which the run differs."""

    label: str
    path: Path | None = None
    arguments: tuple[str, ...] = ()


def parse_rival(text: str) -> Rival:
    """Parses `[label=]flags` or `[label=]path.json`. Raises OptionError."""
    head, equals, rest = text.partition("=")
    label, text = (
        (head.strip(), rest) if equals and not head.lstrip().startswith("-") else ("", text)
    )
    if text.strip().endswith(".json") and not text.lstrip().startswith("-"):
        return Rival(label, Path(text.strip()))
    try:
        arguments = tuple(shlex.split(text))
    except ValueError as error:
        raise OptionError(f'--compare "{text}": {error}') from None
    if not arguments or not arguments[0].startswith("-"):
        raise OptionError(
            f'--compare "{text}": expected flags such as "triton=-u localhost:9000", or a .json'
            " file written by --json"
        )
    return Rival(label or " ".join(arguments), None, arguments)


def rival_options(options: PerfOptions, rival: Rival) -> PerfOptions:
    """Returns the options of the main run, overridden by the rival's flags and without report
    files. Raises OptionError."""
    from naiad.perf.command import command

    try:
        changes = command.parse(rival.arguments)
    except click.ClickException as error:
        raise OptionError(f"--compare {rival.label}: {error.format_message()}") from None
    for field in ("json", "html", "latency_report_file", "profile_export_file"):
        changes.setdefault(field, "")
    return msgspec.structs.replace(options, compare=(), label=rival.label, **changes)


def comparison_text(runs: Sequence[SavedRun]) -> str:
    parts = [render_table(*_table(runs))]
    parts += _chart(
        runs, "Throughput (infer/sec), longer is better", lambda summary: summary.infer_per_s
    )
    if any(run.is_llm for run in runs):
        parts += _chart(
            runs,
            "Output tokens per second, longer is better",
            lambda summary: summary.tokens.output_tokens_per_s if summary.tokens else 0,
        )
    return "\n".join(parts)


def level_keys(runs: Sequence[SavedRun]) -> list[tuple[str, float]]:
    return sorted({(level.mode, level.value) for run in runs for level in run.levels})


def at_level(run: SavedRun, key: tuple[str, float]) -> tuple[SavedLevel, Summary] | None:
    return next((pair for pair in run.measured if (pair[0].mode, pair[0].value) == key), None)


def _table(runs: Sequence[SavedRun]) -> tuple[list[str], list[list[str]]]:
    is_llm = any(run.is_llm for run in runs)
    headings = ["Level", "Run", "infer/sec", "ratio", "p50 us", "p99 us", "ratio p99"]
    if is_llm:
        headings += ["TTFT p50 ms", "TTFT p99 ms", "ITL avg ms", "tokens/sec", "ratio"]
    rows: list[list[str]] = []
    for key in level_keys(runs):
        first = at_level(runs[0], key)
        for run in runs:
            pair = at_level(run, key)
            if pair is not None:
                rows.append(_row(run.label, pair, first[1] if first is not None else None, is_llm))
    return headings, rows


def _row(
    label: str, pair: tuple[SavedLevel, Summary], first: Summary | None, is_llm: bool
) -> list[str]:
    level, summary = pair
    mark = "" if level.is_stable else " (not stable)"
    row = [
        level.label,
        label + mark,
        f"{summary.infer_per_s:,.1f}",
        ratio(summary.infer_per_s, first.infer_per_s if first is not None else 0),
        f"{summary.percentiles_us[50]:,.0f}",
        f"{summary.percentiles_us[99]:,.0f}",
        ratio(summary.percentiles_us[99], first.percentiles_us[99] if first is not None else 0),
    ]
    if is_llm:
        row += _token_cells(summary, first)
    return row


def _token_cells(summary: Summary, first: Summary | None) -> list[str]:
    tokens = summary.tokens
    if tokens is None:
        return [""] * 5
    ttft, itl = (
        tokens.statistics.get("time_to_first_token"),
        tokens.statistics.get("inter_token_latency"),
    )
    first_rate = (
        first.tokens.output_tokens_per_s if first is not None and first.tokens is not None else 0
    )
    return [
        f"{ttft.p50:,.1f}" if ttft else "",
        f"{ttft.p99:,.1f}" if ttft else "",
        f"{itl.average:,.2f}" if itl else "",
        f"{tokens.output_tokens_per_s:,.1f}",
        ratio(tokens.output_tokens_per_s, first_rate),
    ]


def ratio(value: float, first: float) -> str:
    return f"x{value / first:.2f}" if first else ""


def _chart(runs: Sequence[SavedRun], title: str, figure: object) -> list[str]:
    assert callable(figure)
    values = {
        (run.label, key): figure(pair[1])
        for run in runs
        for key in level_keys(runs)
        if (pair := at_level(run, key)) is not None
    }
    if not values or max(values.values()) <= 0:
        return []
    highest = max(values.values())
    width = max(len(run.label) for run in runs)
    lines = [title]
    for key in level_keys(runs):
        shown = next(pair[0].label for run in runs if (pair := at_level(run, key)) is not None)
        lines.append(f"  {shown}")
        for run in runs:
            value = values.get((run.label, key))
            if value is not None:
                filled = bar(value / highest, _BAR_WIDTH).rstrip("░")
                lines.append(f"    {run.label.ljust(width)} {filled} {value:,.1f}")
    return ["\n".join(lines) + "\n"]
