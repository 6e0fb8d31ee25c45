"""One measurement and all there is to say about it: the configuration, the load, the figures, or
why there are none.

Rule: this is what the checkpoint keeps and what every report is made of; nothing else survives a
      run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.window import Summary

MIB = 1e6


class ModelOutcome(msgspec.Struct, frozen=True):
    """One model's part: what it was configured as, and how it did."""

    model: str
    config_name: str
    max_batch_size: int
    dynamic_batching: str
    instances: str
    values: dict[str, Any] = {}
    """What was changed, by dimension; empty for the configuration as it is."""
    figures: dict[str, float] = {}
    is_composing: bool = False
    """Part of an ensemble or called by another: it has no load of its own."""


class Measurement(msgspec.Struct, frozen=True):
    key: str
    concurrency: int
    batch_size: int
    outcomes: list[ModelOutcome]
    figures: dict[str, float] = {}
    """Of the server: memory, utilization."""
    is_stable: bool = True
    error: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Of the configuration: those of the measured models."""
        return " + ".join(outcome.config_name for outcome in self.leading)

    @property
    def leading(self) -> list[ModelOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.is_composing]

    @property
    def is_default(self) -> bool:
        return all(not outcome.values for outcome in self.outcomes)

    def all_figures(self, model: str) -> dict[str, float]:
        """The model's own and the server's."""
        own = next((outcome.figures for outcome in self.outcomes if outcome.model == model), {})
        return {**self.figures, **own}

    def figure(self, name: str) -> float | None:
        """Over all measured models: rates add up, the rest is the worst."""
        if name in self.figures:
            return self.figures[name]
        values = [outcome.figures[name] for outcome in self.leading if name in outcome.figures]
        if not values:
            return None
        return (
            sum(values) if name in ("perf_throughput", "output_token_throughput") else max(values)
        )


def load_figures(result: LevelResult) -> dict[str, float]:
    """The client's and the server's times of one model, in ms."""
    summary = result.summary
    if summary is None:
        return {}
    found = {
        "perf_throughput": summary.infer_per_s,
        "perf_latency_avg": summary.average_us / 1000,
        "perf_client_send_recv": (summary.send_us + summary.receive_us) / 1000,
        "perf_client_response_wait": max(
            0.0, summary.average_us - summary.send_us - summary.receive_us
        )
        / 1000,
    }
    found |= {
        f"perf_latency_p{percentile}": value / 1000
        for percentile, value in summary.percentiles_us.items()
    }
    if summary.server is not None:
        found["perf_server_queue"] = summary.server.queue_us / 1000
        found |= {
            f"perf_server_{phase}": summary.server.phase_us(phase) / 1000
            for phase in ("compute_input", "compute_infer", "compute_output")
        }
    return found | _token_figures(summary)


def _token_figures(summary: Summary) -> dict[str, float]:
    tokens = summary.tokens
    if tokens is None:
        return {}
    found = {"output_token_throughput": tokens.output_tokens_per_s}
    for name in ("time_to_first_token", "inter_token_latency"):
        figure = tokens.statistics.get(name)
        if figure is not None:
            found[f"{name}_avg"] = figure.average
            found[f"{name}_p99"] = figure.p99
    return found


def gpu_figures(summary: Summary | None) -> dict[str, float]:
    gpu = summary.gpu if summary is not None else None
    if gpu is None or not gpu.memory_used_bytes:
        return {}
    used, total = sum(gpu.memory_used_bytes.values()), sum(gpu.memory_total_bytes.values())
    found = {"gpu_used_memory": used / MIB, "gpu_free_memory": (total - used) / MIB}
    if gpu.utilization:
        found["gpu_utilization"] = 100 * sum(gpu.utilization.values()) / len(gpu.utilization)
    if gpu.power_watts:
        found["gpu_power_usage"] = sum(gpu.power_watts.values())
    return found
