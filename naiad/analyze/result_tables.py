"""Builds the tables of a report, with model-analyzer's headings.

The terminal, the CSV file and the HTML page show the same rows.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from naiad.analyze.checkpoint import CheckpointJob, Goal
from naiad.analyze.measurement import Measurement
from naiad.analyze.metric import METRICS
from naiad.analyze.precision import PrecisionOutcome
from naiad.analyze.ranking import Ranked
from naiad.analyze.scoring import keeps_limits

_SERVER_COLUMNS = ("cpu_used_ram", "gpu_used_memory", "gpu_utilization")
_TOKEN_COLUMNS = ("output_token_throughput", "time_to_first_token_p99", "inter_token_latency_avg")
_PRECISION_COLUMNS = ("divergence", "agreement", "perplexity")
_DETAIL_COLUMNS = (
    "perf_throughput",
    "perf_latency_p99",
    "perf_client_response_wait",
    "perf_server_queue",
    "perf_server_compute_input",
    "perf_server_compute_infer",
    "perf_server_compute_output",
    "cpu_utilization",
)


class Table(msgspec.Struct, frozen=True):
    headings: list[str]
    rows: list[list[str]]
    num_text_columns: int
    best_row: int = -1


def heading(metric: str) -> str:
    kind = METRICS[metric]
    return f"{kind.title} ({kind.unit})"


def text(value: float | None, metric: str = "") -> str:
    if value is None:
        return ""
    if metric == "divergence":
        return f"{value:.4f}"
    if metric == "agreement":
        return f"{value:.1f}"
    if METRICS[metric].unit in ("MB", "%"):
        return f"{value:,.0f}"
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def present(metrics: Sequence[str], measurements: Sequence[Measurement]) -> list[str]:
    """Returns the metrics that were measured; a machine without a GPU has no GPU columns."""
    return [
        metric
        for metric in metrics
        if any(measurement.figure(metric) is not None for measurement in measurements)
    ]


def summary_table(ranked: Sequence[Ranked], goal: Goal, count: int) -> Table:
    """Shows the best configurations and the default configuration.

    Compared configurations show the medians of the rounds, all at the same load.
    """
    shown = best_and_default(ranked, count)
    measurements = [entry.shown for entry in shown]
    metrics = [
        "perf_latency_p99",
        "perf_throughput",
        *present((*_TOKEN_COLUMNS, *_SERVER_COLUMNS, "divergence"), measurements),
    ]
    has_limits = any(goal.constraints.values())
    headings = [
        "Model Config Name",
        "Max Batch Size",
        "Dynamic Batching",
        "Total Instance Count",
        "Concurrency",
    ]
    changed = _other_dimensions(measurements)
    headings += [name.removeprefix("parameters.") for name in changed]
    headings += [heading(metric) for metric in metrics]
    headings += ["Gain (%)"] + (["Satisfies Constraints"] if has_limits else [])
    rows: list[list[str]] = []
    for entry in shown:
        one = entry.shown
        row = [entry.name, *_config_cells(one), str(one.concurrency)]
        row += [_changed_cell(one, name) for name in changed]
        row += [text(one.figure(metric), metric) for metric in metrics]
        row += [entry.gain.percent if entry.gain is not None else ""]
        rows.append(row + (["Yes" if entry.keeps_limits else "No"] if has_limits else []))
    return Table(headings, rows, 4, 0 if shown else -1)


def best_and_default(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """Returns the best `count` configurations and the default, in the order of the ranking."""
    best = [entry.name for entry in ranked if not entry.best.is_default][:count]
    return [entry for entry in ranked if entry.best.is_default or entry.name in best]


def precision_table(job: CheckpointJob, ranked: Sequence[Ranked]) -> Table:
    """Shows the speed, the memory and the divergence of each precision next to each other: the best
    configuration of each, or why it was left out."""
    rows: list[list[str]] = []
    best = [(outcome, best_of(outcome, ranked)) for outcome in job.precisions]
    shown = [entry.shown for _, entry in best if entry is not None]
    metrics = present(("perf_throughput", *_TOKEN_COLUMNS, *_SERVER_COLUMNS), shown)
    own = [
        metric
        for metric in ("weight_memory", "kv_cache_per_token", *_PRECISION_COLUMNS)
        if any(metric in outcome.figures for outcome in job.precisions)
    ]
    for outcome, entry in best:
        row = [outcome.precision.quantization, outcome.precision.kv_cache_dtype]
        row.append(entry.name if entry is not None else "")
        row += ["" if entry is None else text(entry.shown.figure(name), name) for name in metrics]
        row += [text(outcome.figures.get(name), name) for name in own]
        rows.append([*row, f"left out: {outcome.reason}" if outcome.reason else ""])
    if len({outcome.model for outcome in job.precisions}) > 1:
        for row, (outcome, _) in zip(rows, best, strict=True):
            row[0] = f"{outcome.model}: {row[0]}"
    headings = ["Quantization", "KV Cache", "Best Config"]
    headings += [heading(metric) for metric in (*metrics, *own)]
    return Table([*headings, "Note"], rows, 3)


def best_of(outcome: PrecisionOutcome, ranked: Sequence[Ranked]) -> Ranked | None:
    """Returns the highest ranked configuration that has the precision."""
    return next(
        (
            entry
            for entry in ranked
            if any(
                (one.model, one.precision) == (outcome.model, outcome.precision)
                for one in entry.best.outcomes
            )
        ),
        None,
    )


_GAIN_METRICS = ("perf_throughput", "perf_latency_p99")


def _gain_headings() -> list[str]:
    metrics = [
        name for metric in _GAIN_METRICS for name in (heading(metric), f"Default {heading(metric)}")
    ]
    return ["Model Config Name", "Concurrency", "Batch", *metrics]


def gain_table(ranked: Sequence[Ranked]) -> Table:
    """Shows the gains over the default at equal load, for each compared load."""
    gains = [gain for entry in ranked for gain in entry.gains]
    rows = [
        [
            gain.name,
            *(str(number) for number in gain.load),
            *(
                text(one.figure(metric), metric)
                for metric in _GAIN_METRICS
                for one in (gain.median, gain.default)
            ),
            gain.percent,
            gain.verdict,
        ]
        for gain in gains
    ]
    best = 0 if gains and gains[0].is_better else -1
    return Table([*_gain_headings(), "Gain (%)", "Verdict"], rows, 1, best)


def gains_csv(jobs: Sequence[tuple[CheckpointJob, Sequence[Ranked]]]) -> str:
    """Returns gains.csv, with one line per compared configuration and load."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    numbers = ["Rounds", "Gain (%)", "Lowest Gain (%)", "Highest Gain (%)"]
    writer.writerow(["Model", *_gain_headings(), *numbers, "Verdict"])
    for job, ranked in jobs:
        for gain in (gain for entry in ranked for gain in entry.gains):
            row = [" + ".join(job.models), gain.name, *gain.load]
            row += [
                _number(one.figure(metric))
                for metric in _GAIN_METRICS
                for one in (gain.median, gain.default)
            ]
            row.append(gain.num_rounds)
            row += [f"{100 * value:.2f}" for value in (gain.gain, gain.low, gain.high)]
            writer.writerow([*row, gain.verdict])
    return out.getvalue()


def _config_cells(measurement: Measurement) -> list[str]:
    """Returns the batch size, the batching and the instances of a configuration.

    For several models, or the parts of an ensemble, each cell lists all of them.
    """
    parts = [
        outcome for outcome in measurement.outcomes if outcome.instances
    ] or measurement.outcomes
    if len(parts) > 1:
        return [
            ", ".join(f"{outcome.model}: {outcome.max_batch_size}" for outcome in parts),
            ", ".join(f"{outcome.model}: {outcome.dynamic_batching}" for outcome in parts),
            ", ".join(f"{outcome.model}: {outcome.instances}" for outcome in parts),
        ]
    only = parts[0]
    return [str(only.max_batch_size), only.dynamic_batching, only.instances]


def _other_dimensions(measurements: Sequence[Measurement]) -> list[str]:
    known = {"max_batch_size", "instance_count", "queue_delay_us"}
    names: dict[str, None] = {}
    for measurement in measurements:
        for outcome in measurement.outcomes:
            names |= dict.fromkeys(name for name in outcome.values if name not in known)
    return list(names)


def _changed_cell(measurement: Measurement, name: str) -> str:
    values = [
        str(outcome.values[name]) for outcome in measurement.outcomes if name in outcome.values
    ]
    return ", ".join(values)


def detail_table(entry: Ranked) -> Table:
    metrics = present((*_DETAIL_COLUMNS, *_TOKEN_COLUMNS, *_SERVER_COLUMNS), entry.measurements)
    headings = ["Request Concurrency", "Batch", *(heading(metric) for metric in metrics)]
    rows = [
        [
            str(one.concurrency),
            str(one.batch_size),
            *(text(one.figure(metric), metric) for metric in metrics),
        ]
        for one in entry.measurements
    ]
    loads = [one.load for one in entry.measurements]
    best = loads.index(entry.shown.load) if entry.shown.load in loads else -1
    return Table(headings, rows, 0, best)


def measurements_csv(jobs: Sequence[tuple[CheckpointJob, Sequence[Measurement]]]) -> str:
    """Returns metrics-model-inference.csv, with one line per measurement."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    every = [measurement for _, measurements in jobs for measurement in measurements]
    metrics = present(tuple(METRICS), every)
    headings = [
        "Model",
        "Batch",
        "Concurrency",
        "Model Config Path",
        "Instance Group",
        "Max Batch Size",
        "Dynamic Batching",
    ]
    writer.writerow(
        [*headings, "Satisfies Constraints", *(heading(metric) for metric in metrics), "Error"]
    )
    for job, measurements in jobs:
        for one in measurements:
            batch, batching, instances = _config_cells(one)
            row = [
                " + ".join(job.models),
                one.batch_size,
                one.concurrency,
                one.name,
                instances,
                batch,
                batching,
            ]
            row.append("" if one.error else "Yes" if keeps_limits(one, job.goal) else "No")
            row += [_number(one.figure(metric)) for metric in metrics]
            writer.writerow([*row, one.error])
    return out.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
