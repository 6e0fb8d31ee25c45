"""Writes the reports of an analysis: text on the terminal, CSV, JSON and HTML.

Rule: reports are made from the checkpoint alone, so that they can be written again without a
      server. `profile` and `report` both use this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from naiad.analyze.analyze_page import analyze_page
from naiad.analyze.checkpoint import CheckpointJob, History, read_history
from naiad.analyze.comparison import NO_BETTER
from naiad.analyze.measurement import Measurement, load_text
from naiad.analyze.precision import PrecisionOutcome
from naiad.analyze.ranking import Ranked, failures, rank
from naiad.analyze.result_tables import (
    best_and_default,
    best_of,
    detail_table,
    gain_table,
    gains_csv,
    measurements_csv,
    precision_table,
    summary_table,
)
from naiad.analyze.settings import ReportOptions
from naiad.settings.option import OptionError
from naiad.tables import render_table

FORMATS = ("html", "csv", "json")


class JobReport(msgspec.Struct):
    job: CheckpointJob
    measurements: list[Measurement]
    ranked: list[Ranked]

    @property
    def title(self) -> str:
        return " + ".join(self.job.models)


def run_report(options: ReportOptions) -> int:
    """Runs `naiad analyze report`. Raises OptionError."""
    history = read_history(Path(options.checkpoint_directory))
    if not history.jobs:
        raise OptionError(
            f"--checkpoint-directory {options.checkpoint_directory} contains no measurements. Run"
            " `naiad analyze profile` first."
        )
    return write_report(history, options, has_details=True)


def write_report(history: History, options: ReportOptions, *, has_details: bool) -> int:
    for name in options.output_formats:
        if name not in FORMATS:
            raise OptionError(
                f"--output-formats: unknown format '{name}', expected {', '.join(FORMATS)}"
            )
    reports = [
        _job_report(job, list(history.measurements[key].values()))
        for key, job in history.jobs.items()
    ]
    for report in reports:
        click.echo(terminal_text(report, options, has_details=has_details))
    _write_files(reports, options, has_details=has_details)
    return 0


def _job_report(job: CheckpointJob, measurements: list[Measurement]) -> JobReport:
    return JobReport(job, measurements, rank(measurements, job.goal))


def terminal_text(report: JobReport, options: ReportOptions, *, has_details: bool) -> str:
    lines = [f"\n{report.title}: {sentence(report)}"]
    if report.ranked:
        table = summary_table(report.ranked, report.job.goal, options.num_configs_per_model)
        lines.append(render_table(table.headings, table.rows).rstrip("\n"))
        gains = gain_table(report.ranked)
        if gains.rows:
            lines += ["\nGain at equal load", render_table(gains.headings, gains.rows).rstrip("\n")]
    if report.job.precisions:
        table = precision_table(report.job, report.ranked)
        lines += ["\nPrecision", render_table(table.headings, table.rows).rstrip("\n")]
    for entry in _detailed(report, options) if has_details else []:
        table = detail_table(entry)
        lines += [f"\n{entry.name}", render_table(table.headings, table.rows).rstrip("\n")]
    failed = failures(report.measurements)
    if failed:
        lines.append(f"\n{len(failed)} measurements failed:")
        lines += [
            f"  {one.name}, concurrency {one.concurrency}: {one.error.splitlines()[0]}"
            for one in failed[:10]
        ]
    return "\n".join(lines)


def _detailed(report: JobReport, options: ReportOptions) -> Sequence[Ranked]:
    if options.report_model_configs:
        return [entry for entry in report.ranked if entry.name in options.report_model_configs]
    return best_and_default(report.ranked, 1)


def sentence(report: JobReport) -> str:
    """Returns the result of an analysis as one sentence."""
    count = len(report.measurements)
    if not report.ranked:
        return f"no result, because each of the {count} measurements failed"
    text = f"{count} measurements of {len(report.ranked)} configurations; {_result(report.ranked)}"
    if not report.ranked[0].keeps_limits:
        text += "; no configuration satisfies all constraints"
    return text


def _result(ranked: Sequence[Ranked]) -> str:
    candidate = next((entry for entry in ranked if not entry.best.is_default), ranked[0])
    gain = candidate.gain
    if gain is None:
        return f"best is {_figures(ranked[0])}{_missing_gain(ranked)}"
    rounds = f"over {gain.num_rounds} rounds"
    if not gain.is_better:
        return (
            f"{candidate.name} is {NO_BETTER}: {gain.factor} of the default at"
            f" {load_text(gain.load)}, {rounds}"
        )
    text = f"best is {_figures(candidate)}: {gain.factor} of the default at the same load, {rounds}"
    others = [f"{other.factor} at {load_text(other.load)}" for other in candidate.gains[1:]]
    return f"{text}; {', '.join(others)}" if others else text


def _figures(entry: Ranked) -> str:
    rate = entry.shown.figure("perf_throughput") or 0.0
    latency = entry.shown.figure("perf_latency_p99") or 0.0
    return (
        f"{entry.name} with {rate:,.1f} infer/sec at p99 {latency:,.2f} ms,"
        f" {load_text(entry.shown.load)}"
    )


def _missing_gain(ranked: Sequence[Ranked]) -> str:
    if all(entry.best.is_default for entry in ranked):
        return ""
    if not any(entry.best.is_default for entry in ranked):
        return "; it was not compared with the default, which did not run"
    return "; gains were not measured at equal load, so it may be no better than the default"


def _write_files(reports: list[JobReport], options: ReportOptions, *, has_details: bool) -> None:
    folder = Path(options.export_path)
    formats = options.output_formats or list(FORMATS)
    texts: dict[str, str] = {}
    pairs = [
        (report.job, [one for one in report.measurements if one.stage != "comparison"])
        for report in reports
    ]
    if "csv" in formats:
        texts["metrics-model-inference.csv"] = measurements_csv(pairs)
        texts["gains.csv"] = gains_csv([(report.job, report.ranked) for report in reports])
    if "json" in formats:
        texts["results.json"] = _json_text(reports)
    if "html" in formats:
        count = options.num_configs_per_model
        texts["report.html"] = analyze_page(
            [
                (report.job, report.measurements, report.ranked, sentence(report))
                for report in reports
            ],
            count,
            has_details=has_details,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in texts.items():
            (folder / name).write_text(content)
    except OSError as error:
        raise OptionError(f"--export-path {folder} cannot be written: {error.strerror}") from None
    click.echo(f"\nReports: {', '.join(str(folder / name) for name in texts)}")


def _json_text(reports: list[JobReport]) -> str:
    document = [
        {
            "job": report.job,
            "summary": sentence(report),
            "ranking": [_ranked(entry) for entry in report.ranked],
            "precisions": [_precision(one, report.ranked) for one in report.job.precisions],
            "measurements": report.measurements,
        }
        for report in reports
    ]
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _precision(outcome: PrecisionOutcome, ranked: Sequence[Ranked]) -> dict[str, object]:
    best = best_of(outcome, ranked)
    figures = {} if best is None else best.shown.all_figures(outcome.model)
    return {
        "model": outcome.model,
        **msgspec.to_builtins(outcome.precision),
        "best": None if best is None else best.name,
        "figures": figures | outcome.figures,
        "reason": outcome.reason,
    }


def _ranked(entry: Ranked) -> dict[str, object]:
    return {
        "name": entry.name,
        "score": entry.score,
        "keeps_limits": entry.keeps_limits,
        "is_better": entry.is_better,
        "gains": entry.gains,
        "best": entry.best,
        "median": entry.median,
    }
