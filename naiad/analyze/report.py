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
from naiad.analyze.checkpoint import History, Job, read_history
from naiad.analyze.measurement import Measurement
from naiad.analyze.ranking import Ranked, default_of, failures, rank
from naiad.analyze.result_tables import detail_table, measurements_csv, summary_table
from naiad.analyze.settings import ReportOptions
from naiad.settings.option import OptionError
from naiad.tables import render_table

FORMATS = ("html", "csv", "json")


class JobReport(msgspec.Struct):
    job: Job
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


def _job_report(job: Job, measurements: list[Measurement]) -> JobReport:
    return JobReport(job, measurements, rank(measurements, job.goal))


def terminal_text(report: JobReport, options: ReportOptions, *, has_details: bool) -> str:
    lines = [f"\n{report.title}: {sentence(report)}"]
    if report.ranked:
        table = summary_table(report.ranked, report.job.goal, options.num_configs_per_model)
        lines.append(render_table(table.headings, table.rows).rstrip("\n"))
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
    return report.ranked[:1]


def sentence(report: JobReport) -> str:
    """Returns the result of a search as one sentence."""
    count = len(report.measurements)
    if not report.ranked:
        return f"no result, because each of the {count} measurements failed"
    best, base = report.ranked[0], default_of(report.measurements)
    rate = best.best.figure("perf_throughput") or 0.0
    latency = best.best.figure("perf_latency_p99") or 0.0
    text = (
        f"{count} measurements of {len(report.ranked)} configurations; best is {best.name} with"
        f" {rate:,.1f} infer/sec at p99 {latency:,.2f} ms, concurrency {best.best.concurrency}"
    )
    if base is not None and not best.best.is_default:
        before = base.figure("perf_throughput") or 0.0
        text += f" (default: {before:,.1f} infer/sec, x{rate / before:.2f})" if before else ""
    return text if best.keeps_limits else f"{text}; no configuration satisfies all constraints"


def _write_files(reports: list[JobReport], options: ReportOptions, *, has_details: bool) -> None:
    folder = Path(options.export_path)
    formats = options.output_formats or list(FORMATS)
    texts: dict[str, str] = {}
    pairs = [(report.job, report.measurements) for report in reports]
    if "csv" in formats:
        texts["metrics-model-inference.csv"] = measurements_csv(pairs)
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
            "measurements": report.measurements,
        }
        for report in reports
    ]
    return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"


def _ranked(entry: Ranked) -> dict[str, object]:
    return {
        "name": entry.name,
        "score": entry.score,
        "keeps_limits": entry.keeps_limits,
        "best": entry.best,
    }
