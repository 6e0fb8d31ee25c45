"""Defines the metrics of configurations, with model-analyzer's names, and computes scores.

In:  the figures of a measurement, objectives and constraints.
Out: a score (higher is better), and by how much constraints are violated.
Rule: scores are relative to the default configuration, so that objectives with different units can
      be weighed against each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad.settings.option import OptionError


class ReportMetric(msgspec.Struct, frozen=True):
    title: str
    unit: str
    is_higher_better: bool


METRICS: dict[str, ReportMetric] = {
    "perf_throughput": ReportMetric("Throughput", "infer/sec", True),
    "perf_latency_avg": ReportMetric("Average Latency", "ms", False),
    "perf_latency_p50": ReportMetric("p50 Latency", "ms", False),
    "perf_latency_p90": ReportMetric("p90 Latency", "ms", False),
    "perf_latency_p95": ReportMetric("p95 Latency", "ms", False),
    "perf_latency_p99": ReportMetric("p99 Latency", "ms", False),
    "perf_client_response_wait": ReportMetric("Client Response Wait", "ms", False),
    "perf_client_send_recv": ReportMetric("Client Send/Recv", "ms", False),
    "perf_server_queue": ReportMetric("Server Queue Time", "ms", False),
    "perf_server_compute_input": ReportMetric("Server Compute Input Time", "ms", False),
    "perf_server_compute_infer": ReportMetric("Server Compute Infer Time", "ms", False),
    "perf_server_compute_output": ReportMetric("Server Compute Output Time", "ms", False),
    "gpu_used_memory": ReportMetric("Max GPU Memory Usage", "MB", False),
    "gpu_free_memory": ReportMetric("Max GPU Memory Available", "MB", True),
    "gpu_utilization": ReportMetric("Average GPU Utilization", "%", True),
    "gpu_power_usage": ReportMetric("Average GPU Power Usage", "W", False),
    "cpu_used_ram": ReportMetric("Max CPU Memory Usage", "MB", False),
    "cpu_utilization": ReportMetric("Average CPU Utilization", "%", False),
    "weight_memory": ReportMetric("Weights", "MB", False),
    "kv_cache_per_token": ReportMetric("KV Cache Per Token", "kB", False),
    "divergence": ReportMetric("Divergence", "nats/token", False),
    "agreement": ReportMetric("Same Likeliest Token", "%", True),
    "perplexity": ReportMetric("Perplexity", "held-out text", False),
    "output_token_throughput": ReportMetric("Output Token Throughput", "tokens/sec", True),
    "time_to_first_token_avg": ReportMetric("Average Time To First Token", "ms", False),
    "time_to_first_token_p99": ReportMetric("p99 Time To First Token", "ms", False),
    "inter_token_latency_avg": ReportMetric("Average Inter Token Latency", "ms", False),
    "inter_token_latency_p99": ReportMetric("p99 Inter Token Latency", "ms", False),
}
_ALIASES = {
    "perf_latency": "perf_latency_avg",
    "latency_p99": "perf_latency_p99",
    "throughput": "perf_throughput",
}

Objectives = dict[str, float]
"""Weights by metric."""


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
    """Returns the sum of the relative amounts by which figures exceed their limits.

    Returns 0 if no limit is violated. A figure that was not measured violates no limit.
    """
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
    """Returns the weighted mean of the relative gains over the base; 0.5 means 50 % better."""
    total = weights = 0.0
    for name, weight in objectives.items():
        value, before = figures.get(name), base.get(name)
        if value is None or not before:
            continue
        if METRICS[name].is_higher_better:
            change = value / before - 1
        else:
            change = before / value - 1 if value else 0.0
        total += weight * change
        weights += weight
    return total / weights if weights else 0.0


_VIOLATION_PENALTY = 10.0


def score(
    figures: Figures, base: Figures, objectives: Objectives, constraints: Constraints
) -> float:
    """Returns the score of a configuration.

    A configuration that satisfies the constraints scores higher than any that does not. Among
    those that do not, a smaller violation scores higher.
    """
    excess = violation(figures, constraints)
    benefit = gain(figures, base, objectives)
    if excess == 0:
        return benefit
    return -1.0 - _VIOLATION_PENALTY * excess + min(0.0, benefit) / 100
