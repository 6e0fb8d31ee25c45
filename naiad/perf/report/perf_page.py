"""Builds the HTML page of `--html`, with the charts and tables of one or several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naiad.perf.load.level import Mode
from naiad.perf.measure.window import Summary
from naiad.perf.report.compare import at_level, level_keys, ratio
from naiad.perf.report.saved_run import SavedLevel, SavedRun
from naiad.perf.report.text_report import TOKEN_ROWS
from naiad.tools.page.chart import Axis, ChartSeries, Mark, legend, xy_chart
from naiad.tools.page.page import Cell, Fact, card, grid, page, table

_LEVEL_NAMES = {
    Mode.CONCURRENCY: "concurrent requests",
    Mode.REPLAY: "replay speed",
    Mode.PERIODIC: "concurrent requests",
}
Figure = Callable[[Summary], float | None]


def perf_page(runs: Sequence[SavedRun]) -> str:
    title = runs[0].label if len(runs) == 1 else " · ".join(run.label for run in runs)
    subtitle = f"naiad perf, {runs[0].time.replace('T', ' ').replace('+00:00', ' UTC')}"
    sections = [grid(_charts(runs)), card("All levels", _table(runs), "Click a heading to sort.")]
    if any(run.is_llm for run in runs):
        sections.append(card("Tokens", _token_table(runs), "Times in milliseconds."))
    footer: list[tuple[str, str]] = []
    for run in runs:
        footer += [
            (run.label, f"{run.model} at {run.url}, {run.protocol}, batch size {run.batch_size}")
        ]
    footer += [
        ("Command", runs[0].command),
        ("Load machine", runs[0].machine),
        ("Version", f"Naiad {runs[0].version}"),
    ]
    return page(title, subtitle, _facts(runs), sections, footer)


def _facts(runs: Sequence[SavedRun]) -> list[Fact]:
    facts: list[Fact] = []
    for run in runs:
        if not run.measured:
            facts.append(Fact(run.label, "no results", run.levels[0].error if run.levels else ""))
            continue
        level, summary = max(run.measured, key=lambda pair: pair[1].infer_per_s)
        name = f"{run.label}: best throughput" if len(runs) > 1 else "Best throughput"
        facts.append(
            Fact(
                name,
                f"{summary.infer_per_s:,.0f}/s",
                f"{level.label}, p99 {_ms(summary.percentiles_us[99])}",
            )
        )
        if len(runs) <= 2:
            level, summary = min(run.measured, key=lambda pair: pair[1].percentiles_us[99])
            name = f"{run.label}: lowest p99" if len(runs) > 1 else "Lowest p99 latency"
            facts.append(
                Fact(
                    name,
                    _ms(summary.percentiles_us[99]),
                    f"{level.label}, {summary.infer_per_s:,.0f}/s",
                )
            )
        if summary.tokens is not None:
            rate = max(
                measured.tokens.output_tokens_per_s
                for _, measured in run.measured
                if measured.tokens is not None
            )
            facts.append(
                Fact(f"{run.label}: tokens", f"{rate:,.0f}/s", "highest output token rate")
            )
    return facts


def _ms(us: float) -> str:
    return f"{us / 1000:,.2f} ms" if us < 1e6 else f"{us / 1e6:,.2f} s"


def _charts(runs: Sequence[SavedRun]) -> list[str]:
    level_name = _LEVEL_NAMES.get(runs[0].mode, "requests per second")
    by_level = Axis(level_name, is_log=_spans(runs) > 20)
    charts = [
        _chart(
            "Throughput against latency",
            "Up and to the left is better.",
            runs,
            lambda level, summary: summary.percentiles_us[99] / 1000,
            lambda summary: summary.infer_per_s,
            Axis("p99 latency, ms"),
            Axis("inferences per second"),
        ),
        _level_chart(
            "Throughput by load",
            runs,
            lambda summary: summary.infer_per_s,
            by_level,
            "inferences per second",
        ),
        _percentiles(runs, by_level),
    ]
    if any(summary.server is not None for run in runs for _, summary in run.measured):
        charts.append(_split(runs, by_level))
    if any(run.is_llm for run in runs):
        charts += [
            _level_chart("Output tokens per second", runs, _tokens, by_level, "tokens per second"),
            _level_chart(
                "Time to first token, p99",
                runs,
                _token_figure("time_to_first_token"),
                by_level,
                "ms",
            ),
            _level_chart(
                "Inter-token latency, p99",
                runs,
                _token_figure("inter_token_latency"),
                by_level,
                "ms",
            ),
        ]
    if any(
        summary.gpu is not None and summary.gpu.utilization
        for run in runs
        for _, summary in run.measured
    ):
        charts.append(_level_chart("GPU utilization", runs, _gpu_percent, by_level, "percent"))
    return charts


def _spans(runs: Sequence[SavedRun]) -> float:
    values = [level.value for run in runs for level, _ in run.measured if level.value > 0]
    return max(values) / min(values) if values else 1.0


def _tokens(summary: Summary) -> float | None:
    return summary.tokens.output_tokens_per_s if summary.tokens is not None else None


def _token_figure(name: str) -> Figure:
    def figure(summary: Summary) -> float | None:
        statistic = summary.tokens.statistics.get(name) if summary.tokens is not None else None
        return statistic.p99 if statistic is not None else None

    return figure


def _gpu_percent(summary: Summary) -> float | None:
    values = list(summary.gpu.utilization.values()) if summary.gpu is not None else []
    return 100 * sum(values) / len(values) if values else None


def _tip(run: SavedRun, level: SavedLevel, summary: Summary) -> str:
    lines = [f"{run.label}, {level.label}", f"{summary.infer_per_s:,.1f} infer/s"]
    lines += [f"p{percentile} {_ms(value)}" for percentile, value in summary.percentiles_us.items()]
    if not level.is_stable:
        lines.append("not stable")
    return "\n".join(lines)


def _chart(
    title: str,
    note: str,
    runs: Sequence[SavedRun],
    x_figure: Callable[[SavedLevel, Summary], float],
    y_figure: Figure,
    x_axis: Axis,
    y_axis: Axis,
) -> str:
    series: list[ChartSeries] = []
    for color, run in enumerate(runs):
        marks = [
            Mark(
                x_figure(level, summary),
                value,
                _tip(run, level, summary),
                not level.is_stable,
                f"{level.value:g}" if len(runs) == 1 else "",
            )
            for level, summary in run.measured
            if (value := y_figure(summary)) is not None
        ]
        if marks:
            series.append(ChartSeries(run.label, marks, color))
    body = xy_chart(series, x_axis, y_axis, f"{title}: {', '.join(one.name for one in series)}")
    return card(title, body + (legend(series) if len(series) > 1 else ""), note)


def _level_chart(
    title: str, runs: Sequence[SavedRun], figure: Figure, x_axis: Axis, unit: str
) -> str:
    return _chart(title, "", runs, lambda level, summary: level.value, figure, x_axis, Axis(unit))


def _percentiles(runs: Sequence[SavedRun], x_axis: Axis) -> str:
    """Shows all percentiles of one run, or the p99 latency of several runs."""
    if len(runs) > 1:
        return _level_chart(
            "p99 latency by load",
            runs,
            lambda summary: summary.percentiles_us[99] / 1000,
            x_axis,
            "ms",
        )
    run = runs[0]
    names = sorted(
        {percentile for _, summary in run.measured for percentile in summary.percentiles_us}
    )
    series = [
        ChartSeries(
            f"p{percentile}",
            [
                Mark(
                    level.value,
                    summary.percentiles_us[percentile] / 1000,
                    _tip(run, level, summary),
                )
                for level, summary in run.measured
            ],
            color,
        )
        for color, percentile in enumerate(names)
    ]
    return card(
        "Latency by load",
        xy_chart(series, x_axis, Axis("ms"), "Latency percentiles by load") + legend(series),
    )


def _split(runs: Sequence[SavedRun], x_axis: Axis) -> str:
    """Shows the server's time of the first run by phase."""
    run = runs[0]
    phases = {
        "queue": "queue",
        "compute input": "compute_input",
        "compute infer": "compute_infer",
        "compute output": "compute_output",
    }
    series = []
    for color, (name, phase) in enumerate(phases.items()):
        marks = [
            Mark(
                level.value,
                (summary.server.queue_us if phase == "queue" else summary.server.phase_us(phase))
                / 1000,
            )
            for level, summary in run.measured
            if summary.server is not None
        ]
        series.append(ChartSeries(name, marks, color))
    title = "Server time per request" + (f", {run.label}" if len(runs) > 1 else "")
    return card(
        title,
        xy_chart(series, x_axis, Axis("ms"), title) + legend(series),
        "From the server's statistics.",
    )


def _table(runs: Sequence[SavedRun]) -> str:
    headings = [
        "Run",
        "Level",
        "infer/s",
        "avg us",
        "p50 us",
        "p90 us",
        "p95 us",
        "p99 us",
        "requests",
        "failed",
    ]
    headings += ["throughput ratio"] if len(runs) > 1 else []
    rows: list[list[str | Cell]] = []
    for key in level_keys(runs):
        pairs = [(run, pair) for run in runs if (pair := at_level(run, key)) is not None]
        best = max((pair[1].infer_per_s for _, pair in pairs), default=0.0)
        first = at_level(runs[0], key)
        for run, (level, summary) in pairs:
            row: list[str | Cell] = [
                run.label,
                level.label + ("" if level.is_stable else " (not stable)"),
            ]
            row.append(
                Cell(
                    f"{summary.infer_per_s:,.1f}",
                    is_best=len(runs) > 1 and summary.infer_per_s == best,
                )
            )
            row += [
                f"{value:,.0f}"
                for value in (
                    summary.average_us,
                    *(summary.percentiles_us[p] for p in (50, 90, 95, 99)),
                )
            ]
            row += [
                f"{summary.num_requests:,}",
                Cell(f"{summary.num_failures:,}", is_muted=not summary.num_failures),
            ]
            if len(runs) > 1:
                row.append(
                    ratio(summary.infer_per_s, first[1].infer_per_s if first is not None else 0)
                )
            rows.append(row)
    return table(headings, rows, num_text_columns=2)


def _token_table(runs: Sequence[SavedRun]) -> str:
    headings = ["Run", "Level", "Figure", "avg", "p50", "p90", "p99", "min", "max"]
    rows: list[list[str | Cell]] = []
    for run in runs:
        for level, summary in run.measured:
            for name, title in TOKEN_ROWS.items():
                statistics = summary.tokens.statistics if summary.tokens is not None else {}
                if (row := statistics.get(name)) is not None:
                    values = (row.average, row.p50, row.p90, row.p99, row.minimum, row.maximum)
                    rows.append(
                        [run.label, level.label, title, *(f"{value:,.2f}" for value in values)]
                    )
    return table(headings, rows, num_text_columns=3)
