"""The figures that configurations are judged by, with model-analyzer's names; and what objectives
and constraints make of them.

In:  Measurement.figures. Out: a score, higher is better; whether limits are kept.
Rule: scores are relative to the default configuration, so objectives with different units can be
      weighed against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad.settings.option import OptionError


class MetricKind(msgspec.Struct, frozen=True):
    title: str
    unit: str
    is_higher_better: bool


METRICS: dict[str, MetricKind] = {
    "perf_throughput": MetricKind("Throughput", "infer/sec", True),
    "perf_latency_avg": MetricKind("Average Latency", "ms", False),
    "perf_latency_p50": MetricKind("p50 Latency", "ms", False),
    "perf_latency_p90": MetricKind("p90 Latency", "ms", False),
    "perf_latency_p95": MetricKind("p95 Latency", "ms", False),
    "perf_latency_p99": MetricKind("p99 Latency", "ms", False),
    "perf_client_response_wait": MetricKind("Client Response Wait", "ms", False),
    "perf_client_send_recv": MetricKind("Client Send/Recv", "ms", False),
    "perf_server_queue": MetricKind("Server Queue Time", "ms", False),
    "perf_server_compute_input": MetricKind("Server Compute Input Time", "ms", False),
    "perf_server_compute_infer": MetricKind("Server Compute Infer Time", "ms", False),
    "perf_server_compute_output": MetricKind("Server Compute Output Time", "ms", False),
    "gpu_used_memory": MetricKind("Max GPU Memory Usage", "MB", False),
    "gpu_free_memory": MetricKind("Max GPU Memory Available", "MB", True),
    "gpu_utilization": MetricKind("Average GPU Utilization", "%", True),
    "gpu_power_usage": MetricKind("Average GPU Power Usage", "W", False),
    "cpu_used_ram": MetricKind("Max CPU Memory Usage", "MB", False),
    "cpu_utilization": MetricKind("Average CPU Utilization", "%", False),
    "output_token_throughput": MetricKind("Output Token Throughput", "tokens/sec", True),
    "time_to_first_token_avg": MetricKind("Average Time To First Token", "ms", False),
    "time_to_first_token_p99": MetricKind("p99 Time To First Token", "ms", False),
    "inter_token_latency_avg": MetricKind("Average Inter Token Latency", "ms", False),
    "inter_token_latency_p99": MetricKind("p99 Inter Token Latency", "ms", False),
}
_ALIASES = {
    "perf_latency": "perf_latency_avg",
    "latency_p99": "perf_latency_p99",
    "throughput": "perf_throughput",
}

Objectives = dict[str, float]
"""Metric -> weight."""


class Limit(msgspec.Struct, frozen=True):
    minimum: float | None = None
    maximum: float | None = None


Constraints = dict[str, Limit]
Figures = Mapping[str, float]


def metric_name(text: str) -> str:
    name = _ALIASES.get(text, text)
    if name not in METRICS:
        raise OptionError(f"'{text}' is not a metric; the metrics are: {', '.join(METRICS)}")
    return name


def violation(figures: Figures, constraints: Constraints) -> float:
    """By what share of their limits the figures are beyond them, summed; 0 when all are kept.
    Unknown figures keep every limit."""
    total = 0.0
    for name, limit in constraints.items():
        value = figures.get(name)
        if value is None:
            continue
        if limit.maximum is not None and value > limit.maximum:
            total += value / limit.maximum - 1 if limit.maximum else 1.0
        if limit.minimum is not None and value < limit.minimum:
            total += 1 - value / limit.minimum
    return total


def gain(figures: Figures, base: Figures, objectives: Objectives) -> float:
    """Weighted mean of the relative gains over the base: 0.5 is half as good again."""
    total = weights = 0.0
    for name, weight in objectives.items():
        value, before = figures.get(name), base.get(name)
        if value is None or not before:
            continue
        change = (
            value / before - 1
            if METRICS[name].is_higher_better
            else before / value - 1
            if value
            else 0.0
        )
        total += weight * change
        weights += weight
    return total / weights if weights else 0.0


_VIOLATION_PENALTY = 10.0


def score(
    figures: Figures, base: Figures, objectives: Objectives, constraints: Constraints
) -> float:
    """Any configuration that keeps the limits is better than any that does not; of those the
    nearest is best."""
    beyond = violation(figures, constraints)
    found = gain(figures, base, objectives)
    return found if beyond == 0 else -1.0 - _VIOLATION_PENALTY * beyond + min(0.0, found) / 100
