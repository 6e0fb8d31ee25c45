"""A measurement window, and the summary of one or several windows.

In:  Records, the server's statistics, GPU readings. Out: a Summary, which all reports show.
Rule: percentiles are nearest-rank on the samples, as in perf_analyzer. No sample is smoothed or
      dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from naiad.perf.measure.gpu_readings import GpuReadings, merge_readings
from naiad.perf.measure.recorder import Records, merge
from naiad.perf.measure.server_statistics import ModelDelta, merge_deltas
from naiad.perf.measure.token_metrics import TokenCounting, TokenSummary, summarize_tokens

PERCENTILES = (50, 90, 95, 99)
_DELAYED_NS = 1_000_000
"""A request that is sent later than this after its intended time counts as delayed."""


class WindowPlan(msgspec.Struct, frozen=True):
    """The properties that all windows of a run have in common."""

    batch_size: int = 1
    is_decoupled: bool = False
    """True if latency ends with the first response, as in perf_analyzer for decoupled models."""
    is_llm: bool = False
    """True if responses carry tokens; then latency ends with the last response."""
    percentile: int = -1
    """Percentile of the latency that decides about stability; -1 for the average."""
    goodput: dict[str, float] = {}
    counting: TokenCounting = TokenCounting()
    data_advice: str = ""
    """What to try when the server refuses every request; empty if the data is the user's own."""


class Window(msgspec.Struct, frozen=True):
    start_ns: int
    end_ns: int
    records: Records
    server: ModelDelta | None = None
    gpu: GpuReadings | None = None

    @property
    def duration_s(self) -> float:
        return max(1, self.end_ns - self.start_ns) / 1e9


class Summary(msgspec.Struct, frozen=True):
    num_requests: int
    num_responses: int
    num_failures: int
    failures: dict[str, int]
    """Number of occurrences of each message, most frequent first."""
    duration_s: float
    infer_per_s: float
    response_per_s: float
    send_per_s: float
    delayed_percent: float
    average_us: float
    deviation_us: float
    percentiles_us: dict[int, float]
    send_us: float
    receive_us: float
    overhead_percent: float
    num_sequences: int
    server: ModelDelta | None = None
    gpu: GpuReadings | None = None
    tokens: TokenSummary | None = None

    def latency_us(self, percentile: int) -> float:
        return self.average_us if percentile < 0 else self.percentiles_us[percentile]


def nearest_rank(ordered: np.ndarray[Any, Any], percentile: float) -> float:
    """Returns a percentile by perf_analyzer's rule; 0 without samples."""
    if not len(ordered):
        return 0.0
    last = len(ordered) - 1
    return float(ordered[min(last, int(percentile / 100 * last + 0.5))])


def latencies_us(records: Records, plan: WindowPlan) -> np.ndarray[Any, Any]:
    ends = records.first if plan.is_decoupled and not plan.is_llm else records.end
    return (ends - records.start) / 1000


def summarize(windows: Sequence[Window], plan: WindowPlan) -> Summary:
    records = merge([window.records for window in windows])
    duration_s = sum(window.duration_s for window in windows)
    latency = np.sort(latencies_us(records, plan))
    count = len(records)
    percentiles = sorted({*PERCENTILES, *([plan.percentile] if plan.percentile > 0 else [])})
    failures = Counter(failure.message for failure in records.failures)
    gpu = [window.gpu for window in windows if window.gpu is not None]
    return Summary(
        count,
        int(records.num_responses.sum()),
        len(records.failures),
        dict(failures.most_common()),
        duration_s,
        count * plan.batch_size / duration_s,
        float(records.num_responses.sum()) * plan.batch_size / duration_s,
        (count + len(records.failures)) / duration_s,
        float(100 * np.mean(records.late > _DELAYED_NS)) if count else 0.0,
        float(latency.mean()) if count else 0.0,
        float(latency.std()) if count else 0.0,
        {percentile: nearest_rank(latency, percentile) for percentile in percentiles},
        _mean_us(records.send),
        _mean_us(records.receive),
        _overhead_percent(records),
        len(np.unique(records.sequence[records.sequence >= 0])),
        merge_deltas([window.server for window in windows]),
        merge_readings(gpu) if gpu else None,
        summarize_tokens(records, duration_s, plan.goodput, plan.counting) if plan.is_llm else None,
    )


def _mean_us(values: np.ndarray[Any, Any]) -> float:
    return float(values.mean()) / 1000 if len(values) else 0.0


def _overhead_percent(records: Records) -> float:
    """Returns the client's share of the latency: the time spent writing and reading."""
    total = float(records.latency.sum())
    return 100 * float(records.send.sum() + records.receive.sum()) / total if total > 0 else 0.0
