"""Reads --metrics-config: which of Triton's latency metrics are exported, and with which
quantiles."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from naiad.settings.compound import MetricsSetting
from naiad.settings.value import boolean, real


class LatencyMetrics(msgspec.Struct, frozen=True):
    has_counters: bool = True
    has_histograms: bool = False
    has_summaries: bool = False
    quantiles: tuple[tuple[float, float], ...] = (
        (0.5, 0.05),
        (0.9, 0.01),
        (0.95, 0.001),
        (0.99, 0.001),
        (0.999, 0.001),
    )
    """Pairs of a quantile and the allowed error of its rank."""


_SWITCHES = {
    "counter_latencies": "has_counters",
    "histogram_latencies": "has_histograms",
    "summary_latencies": "has_summaries",
}


def latency_metrics(entries: Iterable[MetricsSetting]) -> LatencyMetrics:
    """Combines the entries; the last entry of a setting wins.

    Raises ValueError for an invalid value. Ignores unknown settings, as Triton does.
    """
    metrics = LatencyMetrics()
    for entry in entries:
        if entry.setting in _SWITCHES:
            metrics = msgspec.structs.replace(
                metrics, **{_SWITCHES[entry.setting]: boolean(entry.value)}
            )
        elif entry.setting == "summary_quantiles":
            metrics = msgspec.structs.replace(
                metrics, quantiles=tuple(_quantile(part) for part in entry.value.split(","))
            )
    return metrics


def _quantile(text: str) -> tuple[float, float]:
    quantile, colon, error = text.partition(":")
    try:
        pair = real(quantile), real(error)
    except ValueError:
        pair = (-1.0, -1.0)
    if not colon or not all(0 <= number <= 1 for number in pair):
        raise ValueError(
            f"summary_quantiles must be <quantile>:<error>,... with numbers from 0 to 1. Got {text}"
        )
    return pair
