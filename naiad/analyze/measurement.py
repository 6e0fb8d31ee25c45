"""Defines a measurement: the configuration, the load, and the figures or the error.

Rule: the checkpoint stores measurements, and every report is made from them alone.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from naiad.analyze.precision import Precision
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.window import Summary

MIB = 1e6

Stage = Literal["search", "sweep", "comparison"]
"""The stage of the analysis that made a measurement; see study.py."""


Load = tuple[int, int]
"""Concurrency and batch size of the requests."""


class ModelOutcome(msgspec.Struct, frozen=True):
    """The configuration and the figures of one model in a measurement."""

    model: str
    config_name: str
    max_batch_size: int
    dynamic_batching: str
    instances: str
    values: dict[str, Any] = {}
    """Changed values by dimension; empty for the default configuration."""
    figures: dict[str, float] = {}
    precision: Precision | None = None
    """Set for a language model whose precision is searched."""
    is_composing: bool = False
    """True for a part of an ensemble or a model that a BLS model calls; it has no load of its
    own."""


class Measurement(msgspec.Struct, frozen=True):
    key: str
    concurrency: int
    batch_size: int
    outcomes: list[ModelOutcome]
    figures: dict[str, float] = {}
    """Figures of the server, such as memory and utilization."""
    is_stable: bool = True
    error: str = ""
    seconds: float = 0.0
    stage: Stage = "search"
    round: int = 0
    """Number of the round of the comparison, from 1; 0 in the other stages."""

    @property
    def load(self) -> Load:
        return self.concurrency, self.batch_size

    @property
    def name(self) -> str:
        """The configuration names of the models under load, joined."""
        return " + ".join(outcome.config_name for outcome in self.leading)

    @property
    def leading(self) -> list[ModelOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.is_composing]

    @property
    def is_default(self) -> bool:
        return all(not outcome.values for outcome in self.outcomes)

    def all_figures(self, model: str) -> dict[str, float]:
        """Returns the figures of the model and of the server."""
        own = next((outcome.figures for outcome in self.outcomes if outcome.model == model), {})
        return {**self.figures, **own}

    def figure(self, name: str) -> float | None:
        """Returns a figure over all models under load: the sum of rates, the maximum of others."""
        if name in self.figures:
            return self.figures[name]
        values = [outcome.figures[name] for outcome in self.leading if name in outcome.figures]
        if not values:
            return None
        return (
            sum(values) if name in ("perf_throughput", "output_token_throughput") else max(values)
        )


def load_text(load: Load) -> str:
    concurrency, batch_size = load
    return f"concurrency {concurrency}" + (f", batch {batch_size}" if batch_size > 1 else "")


def load_figures(result: LevelResult) -> dict[str, float]:
    """Returns the client's and the server's figures of one model; times are in ms."""
    summary = result.summary
    if summary is None:
        return {}
    wait_us = max(0.0, summary.average_us - summary.send_us - summary.receive_us)
    figures = {
        "perf_throughput": summary.infer_per_s,
        "perf_latency_avg": summary.average_us / 1000,
        "perf_client_send_recv": (summary.send_us + summary.receive_us) / 1000,
        "perf_client_response_wait": wait_us / 1000,
    }
    figures |= {
        f"perf_latency_p{percentile}": value / 1000
        for percentile, value in summary.percentiles_us.items()
    }
    if summary.server is not None:
        figures["perf_server_queue"] = summary.server.queue_us / 1000
        figures |= {
            f"perf_server_{phase}": summary.server.phase_us(phase) / 1000
            for phase in ("compute_input", "compute_infer", "compute_output")
        }
    return figures | _token_figures(summary)


def _token_figures(summary: Summary) -> dict[str, float]:
    tokens = summary.tokens
    if tokens is None:
        return {}
    figures = {"output_token_throughput": tokens.output_tokens_per_s}
    for name in ("time_to_first_token", "inter_token_latency"):
        statistics = tokens.statistics.get(name)
        if statistics is not None:
            figures[f"{name}_avg"] = statistics.average
            figures[f"{name}_p99"] = statistics.p99
    return figures


def gpu_figures(summary: Summary | None) -> dict[str, float]:
    gpu = summary.gpu if summary is not None else None
    if gpu is None or not gpu.memory_used_bytes:
        return {}
    used, total = sum(gpu.memory_used_bytes.values()), sum(gpu.memory_total_bytes.values())
    figures = {"gpu_used_memory": used / MIB, "gpu_free_memory": (total - used) / MIB}
    if gpu.utilization:
        figures["gpu_utilization"] = 100 * sum(gpu.utilization.values()) / len(gpu.utilization)
    if gpu.power_watts:
        figures["gpu_power_usage"] = sum(gpu.power_watts.values())
    return figures
