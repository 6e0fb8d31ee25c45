"""Writes the CSV file of `-f FILE` with perf_analyzer's columns, followed by token columns of
ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from naiad.perf.data.model_facts import ModelFacts
from naiad.perf.load.level import Mode
from naiad.perf.measure.gpu_readings import GpuReadings
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.server_statistics import ModelDelta
from naiad.perf.measure.window import PERCENTILES, Summary
from naiad.perf.options import PerfOptions

_PHASES = ("compute_input", "compute_infer", "compute_output")
_TOKEN_COLUMNS = ("time_to_first_token", "inter_token_latency")


def csv_text(results: Sequence[LevelResult], options: PerfOptions, facts: ModelFacts) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    measured = [(result, result.summary) for result in results if result.summary is not None]
    has_server = any(summary.server is not None for _, summary in measured)
    has_tokens = any(summary.tokens is not None for _, summary in measured)
    writer.writerow(_columns(options, facts, has_server, has_tokens, _is_rate(results)))
    for result, summary in measured:
        writer.writerow(_row(result, summary, options, facts, has_server, has_tokens))
    return out.getvalue()


def _is_rate(results: Sequence[LevelResult]) -> bool:
    return bool(results) and results[0].level.mode in (Mode.REQUEST_RATE, Mode.INTERVALS)


def _percentiles(options: PerfOptions) -> list[int]:
    return sorted({*PERCENTILES, *([options.percentile] if options.percentile > 0 else [])})


def _columns(
    options: PerfOptions, facts: ModelFacts, has_server: bool, has_tokens: bool, is_rate: bool
) -> list[str]:
    names = ["Request Rate" if is_rate else "Concurrency", "Inferences/Second"]
    if facts.is_decoupled:
        names.append("Response Throughput")
    names.append("Client Send")
    if has_server:
        names += [
            "Network+Server Send/Recv",
            "Server Queue",
            "Server Compute Input",
            "Server Compute Infer",
            "Server Compute Output",
        ]
        if facts.has_response_cache:
            names += ["Server Cache Hit", "Server Cache Miss"]
    names.append("Client Recv")
    names += [f"p{percentile} latency" for percentile in _percentiles(options)]
    if options.verbose_csv:
        names += ["Avg latency"] if options.percentile < 0 else []
        names += ["request/response", "response wait"]
        if options.collect_metrics:
            names += [
                "Avg GPU Utilization",
                "Avg GPU Power Usage",
                "Max GPU Memory Usage",
                "Total GPU Memory",
            ]
    if has_tokens:
        for name in _TOKEN_COLUMNS:
            title = name.replace("_", " ")
            names += [f"avg {title} ms", f"p99 {title} ms"]
        names += ["Output Tokens/Second", "Input Tokens/Second"]
    return names


def _row(
    result: LevelResult,
    summary: Summary,
    options: PerfOptions,
    facts: ModelFacts,
    has_server: bool,
    has_tokens: bool,
) -> list[str]:
    row = [f"{result.level.value:g}", f"{summary.infer_per_s:.6g}"]
    if facts.is_decoupled:
        row.append(f"{summary.response_per_s:.6g}")
    row.append(f"{summary.send_us:.0f}")
    if has_server:
        row += _server_cells(summary, facts)
    row.append(f"{summary.receive_us:.0f}")
    row += [f"{summary.percentiles_us[percentile]:.0f}" for percentile in _percentiles(options)]
    if options.verbose_csv:
        row += [f"{summary.average_us:.0f}"] if options.percentile < 0 else []
        both = summary.send_us + summary.receive_us
        row += [f"{both:.0f}", f"{max(0.0, summary.average_us - both):.0f}"]
        if options.collect_metrics:
            row += _gpu_cells(summary.gpu or GpuReadings())
    if has_tokens:
        row += _token_cells(summary)
    return row


def _server_cells(summary: Summary, facts: ModelFacts) -> list[str]:
    server = summary.server
    if server is None:
        return [""] * (7 if facts.has_response_cache else 5)
    phases = [server.queue_us, *(server.phase_us(phase) for phase in _PHASES)]
    caches = _caches(server) if facts.has_response_cache else []
    network = summary.average_us - sum(phases) - sum(caches) - summary.send_us - summary.receive_us
    return [f"{max(0.0, network):.0f}", *(f"{value:.0f}" for value in (*phases, *caches))]


def _caches(server: ModelDelta) -> list[float]:
    return [server.counters.average_us("cache_hit"), server.counters.average_us("cache_miss")]


def _gpu_cells(gpu: GpuReadings) -> list[str]:
    readings = (gpu.utilization, gpu.power_watts, gpu.memory_used_bytes, gpu.memory_total_bytes)
    return [
        "".join(f"{name}:{value:g};" for name, value in reading.items()) for reading in readings
    ]


def _token_cells(summary: Summary) -> list[str]:
    tokens = summary.tokens
    if tokens is None:
        return [""] * 6
    cells: list[str] = []
    for name in _TOKEN_COLUMNS:
        figure = tokens.statistics.get(name)
        cells += ["", ""] if figure is None else [f"{figure.average:.3f}", f"{figure.p99:.3f}"]
    return [*cells, f"{tokens.output_tokens_per_s:.6g}", f"{tokens.input_tokens_per_s:.6g}"]
