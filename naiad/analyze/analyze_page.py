"""Builds the HTML report of an analysis.

The page shows the best configuration and its gain, charts, all tables, and how the measurements
were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from naiad.analyze.checkpoint import CheckpointJob
from naiad.analyze.comparison import NO_BETTER
from naiad.analyze.measurement import Measurement, load_text
from naiad.analyze.metric import METRICS
from naiad.analyze.ranking import Ranked, failures
from naiad.analyze.result_tables import (
    Table,
    best_and_default,
    detail_table,
    gain_table,
    heading,
    precision_table,
    present,
    summary_table,
    text,
)
from naiad.tools.page.chart import (
    NUM_COLORS,
    Axis,
    Bar,
    ChartSeries,
    Mark,
    bar_chart,
    heat_chart,
    legend,
    xy_chart,
)
from naiad.tools.page.page import Cell, Fact, card, grid, page, table
from naiad.tools.page.page import heading as part_heading

JobPart = tuple[CheckpointJob, list[Measurement], list[Ranked], str]
_MAX_SERIES = NUM_COLORS - 1
_GAIN_NOTE = (
    "The configurations and the default were measured in turns at the same loads. The gain compares"
    " the medians of the rounds, and the range in parentheses is the noise. If the range includes"
    " 0, the configuration is not better."
)


_PRECISION_NOTE = (
    "Each precision with its best configuration. The divergence is the Kullback-Leibler divergence"
    " of next-token distributions from those of the unquantized model, the mean over a text."
)


def analyze_page(parts: Sequence[JobPart], count: int, *, has_details: bool) -> str:
    title = "Model analysis: " + ", ".join(" + ".join(job.models) for job, *_ in parts)
    facts = [fact for part in parts for fact in _facts(part, several=len(parts) > 1)]
    sections: list[str] = []
    for part in parts:
        if len(parts) > 1:
            sections.append(part_heading(" + ".join(part[0].models)))
        sections += _sections(part, count, has_details=has_details)
    first = parts[0][0]
    footer = [
        ("Command", first.command),
        ("Search", "; ".join(dict.fromkeys(_search_text(part) for part in parts))),
        ("Machine", first.machine),
    ]
    footer += [("Repository", first.repository), ("Version", f"Naiad {first.version}")]
    when = first.time.replace("T", " ").replace("+00:00", " UTC")
    return page(
        title, f"naiad analyze, {when}", facts, sections, [entry for entry in footer if entry[1]]
    )


def _search_text(part: JobPart) -> str:
    job, measurements, *_ = part
    numbers = {
        stage: sum(one.stage == stage for one in measurements)
        for stage in ("search", "sweep", "comparison")
    }
    return (
        f"{job.search_mode}: {numbers['search']} measurements, where brute force makes"
        f" {job.space_size:,}; {numbers['sweep']} in the sweep, {numbers['comparison']} in the"
        " comparison"
    )


def _facts(part: JobPart, *, several: bool) -> list[Fact]:
    job, measurements, ranked, _ = part
    prefix = f"{' + '.join(job.models)}: " if several else ""
    best_name = f"{prefix}best configuration" if several else "Best configuration"
    rate_name = f"{prefix}throughput" if several else "Throughput"
    latency_name = f"{prefix}p99 latency"
    if not ranked:
        return [Fact(f"{prefix}result", "no results", f"{len(measurements)} measurements failed")]
    best = ranked[0]
    shown = best.shown
    rate = shown.figure("perf_throughput") or 0.0
    latency = shown.figure("perf_latency_p99") or 0.0
    facts = [
        Fact(best_name, _short_name(job, best), _config_text(shown)),
        _gain_fact(f"{prefix}gain" if several else "Gain at equal load", ranked),
        Fact(rate_name, f"{rate:,.0f}/s", f"at {load_text(shown.load)}"),
        Fact(latency_name, f"{latency:,.2f} ms", f"at {load_text(shown.load)}"),
    ]
    if not several:
        memory = shown.figure("gpu_used_memory") or shown.figure("cpu_used_ram")
        if memory is not None:
            kind = "GPU" if shown.figure("gpu_used_memory") else "CPU"
            facts.append(Fact(f"{kind} memory", f"{memory:,.0f} MB", "the server and its workers"))
    return facts


def _short_name(job: CheckpointJob, entry: Ranked) -> str:
    return "default" if entry.best.is_default else entry.name.removeprefix(f"{job.models[0]}_")


def _gain_fact(title: str, ranked: Sequence[Ranked]) -> Fact:
    gain = next((entry.gain for entry in ranked if entry.gain is not None), None)
    if gain is None:
        return Fact(title, "not measured", "no comparison with the default was completed")
    if not gain.is_better:
        return Fact(title, "none", f"{gain.name} is {NO_BETTER}")
    return Fact(
        title,
        f"x{1 + gain.gain:.2f}",
        f"x{1 + gain.low:.2f} to x{1 + gain.high:.2f} in {gain.num_rounds} rounds, at"
        f" {load_text(gain.load)}",
    )


def _config_text(measurement: Measurement) -> str:
    only = measurement.leading[0]
    if len(measurement.outcomes) > 1:
        return f"{len(measurement.outcomes)} models"
    if any(name.startswith("parameters.") for name in only.values):
        return ", ".join(
            f"{name.removeprefix('parameters.')} {value}" for name, value in only.values.items()
        )
    return (
        f"batch {only.max_batch_size}, instances {only.instances},"
        f" batching {only.dynamic_batching.lower()}"
    )


def _sections(part: JobPart, count: int, *, has_details: bool) -> list[str]:
    job, measurements, ranked, sentence = part
    sections: list[str] = []
    if ranked:
        summary = summary_table(ranked, job.goal, count)
        sections.append(
            card("Best configurations", _table(summary), sentence[0].upper() + sentence[1:] + ".")
        )
        sections.append(grid(_charts(job, ranked, count)))
        gains = gain_table(ranked)
        if gains.rows:
            sections.append(card("Gain at equal load", _table(gains), _GAIN_NOTE))
        if job.precisions:
            precisions = _table(precision_table(job, ranked))
            sections.append(card("Speed, memory and divergence", precisions, _PRECISION_NOTE))
        if has_details:
            sections += [
                card(f"Details: {entry.name}", _table(detail_table(entry)))
                for entry in best_and_default(ranked, count)
            ]
        sections.append(
            card(
                "All configurations",
                _table(_all_table(ranked)),
                "Each configuration under its best load. Click a heading to sort.",
            )
        )
    failed = failures(measurements)
    if failed:
        rows: list[list[str | Cell]] = [
            [one.name, str(one.concurrency), one.error.splitlines()[0]] for one in failed
        ]
        sections.append(
            card(
                "Failed measurements",
                table(["Model Config Name", "Concurrency", "Reason"], rows, num_text_columns=3),
            )
        )
    return sections


def _table(data: Table) -> str:
    rows: list[list[str | Cell]] = [list(row) for row in data.rows]
    return table(
        data.headings, rows, num_text_columns=data.num_text_columns, best_row=data.best_row
    )


def _all_table(ranked: Sequence[Ranked]) -> Table:
    candidates = (
        "perf_throughput",
        "perf_latency_p99",
        "perf_latency_avg",
        "output_token_throughput",
        "cpu_used_ram",
        "gpu_used_memory",
        "gpu_utilization",
    )
    metrics = present(candidates, [entry.best for entry in ranked])
    rows = [
        [
            entry.name,
            _config_text(entry.best),
            str(entry.best.concurrency),
            *(text(entry.best.figure(metric), metric) for metric in metrics),
        ]
        for entry in ranked
    ]
    return Table(
        [
            "Model Config Name",
            "Configuration",
            "Concurrency",
            *(heading(metric) for metric in metrics),
        ],
        rows,
        2,
    )


def _charts(job: CheckpointJob, ranked: Sequence[Ranked], count: int) -> list[str]:
    chosen = _chosen(ranked, max(count, 3))
    rate_name = (
        "output_token_throughput"
        if any(entry.best.figure("output_token_throughput") for entry in ranked)
        else "perf_throughput"
    )
    charts = [
        _throughput_latency(job, ranked, chosen, rate_name),
        _by_concurrency(chosen, rate_name),
        _latency_by_concurrency(job, chosen),
    ]
    heat = _heat(ranked, rate_name)
    charts.append(heat or _bars("Throughput of the best configurations", chosen, rate_name))
    costs = present(
        ("gpu_used_memory", "gpu_utilization", "cpu_used_ram", "cpu_utilization"),
        [entry.best for entry in ranked],
    )
    return charts + [_bars(METRICS[metric].title, chosen, metric) for metric in costs]


def _chosen(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    return best_and_default(ranked, min(count, _MAX_SERIES - 1))


def _tip(entry: Ranked, one: Measurement) -> str:
    lines = [f"{entry.name}, concurrency {one.concurrency}"]
    names = (
        "perf_throughput",
        "output_token_throughput",
        "perf_latency_p99",
        "perf_latency_avg",
        "gpu_used_memory",
        "cpu_used_ram",
    )
    lines += [
        f"{METRICS[metric].title}: {text(one.figure(metric), metric)} {METRICS[metric].unit}"
        for metric in present(names, [one])
    ]
    return "\n".join([*lines, *([] if one.is_stable else ["not stable"])])


def _limit(job: CheckpointJob, metric: str) -> float | None:
    maxima = [
        limits[metric].maximum for limits in job.goal.constraints.values() if metric in limits
    ]
    return next((maximum for maximum in maxima if maximum is not None), None)


def _throughput_latency(
    job: CheckpointJob, ranked: Sequence[Ranked], chosen: Sequence[Ranked], rate: str
) -> str:
    """Shows every measurement, and each of the best configurations in a colour of its own."""
    names = {entry.name for entry in chosen}
    rest = [
        Mark(
            one.figure("perf_latency_p99") or 0,
            one.figure(rate) or 0,
            _tip(entry, one),
            not one.is_stable,
        )
        for entry in ranked
        if entry.name not in names
        for one in entry.measurements
    ]
    series = (
        [ChartSeries("other configurations", rest, NUM_COLORS - 1, has_line=False)] if rest else []
    )
    for color, entry in enumerate(chosen):
        marks = [
            Mark(
                one.figure("perf_latency_p99") or 0,
                one.figure(rate) or 0,
                _tip(entry, one),
                not one.is_stable,
                "best" if entry.is_better and color == 0 and one.load == entry.shown.load else "",
            )
            for one in entry.measurements
        ]
        series.append(ChartSeries(entry.name, marks, color, has_line=len(marks) > 1))
    latencies = [mark.x for one in series for mark in one.marks if mark.x > 0]
    is_log = bool(latencies) and max(latencies) / min(latencies) > 50
    x_axis = Axis("p99 latency, ms", is_log=is_log, limit=_limit(job, "perf_latency_p99"))
    body = xy_chart(
        series, x_axis, Axis(_unit(rate)), "Throughput against p99 latency of all configurations"
    )
    return card(
        "Throughput against p99 latency",
        body + legend(series),
        "Each point is one measurement; a hollow one was not stable. Up and to the left is better.",
    )


def _unit(rate: str) -> str:
    return (
        "output tokens per second" if rate == "output_token_throughput" else "inferences per second"
    )


def _by_concurrency(chosen: Sequence[Ranked], rate: str) -> str:
    series = [
        ChartSeries(
            entry.name,
            [
                Mark(one.concurrency, one.figure(rate) or 0, _tip(entry, one), not one.is_stable)
                for one in entry.measurements
            ],
            color,
        )
        for color, entry in enumerate(chosen)
    ]
    body = xy_chart(
        series,
        Axis("concurrent requests", is_log=True),
        Axis(_unit(rate)),
        "Throughput by concurrency",
    )
    return card("Throughput by concurrency", body + legend(series))


def _latency_by_concurrency(job: CheckpointJob, chosen: Sequence[Ranked]) -> str:
    series = [
        ChartSeries(
            entry.name,
            [
                Mark(
                    one.concurrency,
                    one.figure("perf_latency_p99") or 0,
                    _tip(entry, one),
                    not one.is_stable,
                )
                for one in entry.measurements
            ],
            color,
        )
        for color, entry in enumerate(chosen)
    ]
    y_axis = Axis("p99 latency, ms", limit=_limit(job, "perf_latency_p99"))
    body = xy_chart(
        series, Axis("concurrent requests", is_log=True), y_axis, "p99 latency by concurrency"
    )
    return card("p99 latency by concurrency", body + legend(series))


def _heat(ranked: Sequence[Ranked], rate: str) -> str:
    """Shows the throughput over the two searched dimensions of a model.

    Returns an empty text if the search did not vary exactly two dimensions.
    """
    outcomes = [
        (max(one.figure(rate) or 0.0 for one in entry.measurements), entry.best.outcomes[0])
        for entry in ranked
        if len(entry.best.outcomes) == 1 and entry.best.outcomes[0].values
    ]
    names = sorted(
        {
            name
            for _, outcome in outcomes
            for name in outcome.values
            if len({str(one.values.get(name)) for _, one in outcomes}) > 1
        }
    )
    if len(names) != 2:
        return ""
    x_name, y_name = sorted(
        names, key=lambda name: name == "instance_count" or name.endswith("batched_tokens")
    )
    columns, rows = (
        sorted({outcome.values[name] for _, outcome in outcomes}) for name in (x_name, y_name)
    )
    values: dict[tuple[int, int], float] = {}
    for highest, outcome in outcomes:
        cell = (
            columns.index(outcome.values[x_name]),
            len(rows) - 1 - rows.index(outcome.values[y_name]),
        )
        values[cell] = max(values.get(cell, 0.0), highest)
    titles = [name.removeprefix("parameters.").replace("_", " ") for name in (x_name, y_name)]
    body = heat_chart(
        [str(value) for value in columns],
        [str(value) for value in reversed(rows)],
        values,
        titles[0],
        titles[1],
        "Throughput map",
    )
    return card(
        "Searched configurations",
        body,
        f"Highest {_unit(rate)} of each configuration. An empty cell was not measured.",
    )


def _bars(title: str, chosen: Sequence[Ranked], metric: str) -> str:
    bars = [
        Bar(entry.name, value, color, _tip(entry, entry.shown))
        for color, entry in enumerate(chosen)
        if (value := entry.shown.figure(metric)) is not None
    ]
    return card(title, bar_chart(bars, METRICS[metric].unit, title))
