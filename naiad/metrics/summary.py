"""Triton's optional latency summaries: quantiles over the last minute.

In:  durations of completed requests. Out: a count, a sum and quantiles for each phase. Quantiles
     are within 1 % of the true value.
Rule: memory depends on the spread of the values, not on their number. Nothing here runs unless
      summary_latencies is on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from naiad.core.statistics import BatchTimes, CompletedRequest, ModelStatistics
from naiad.settings import LatencyMetrics

SLICE_NS = 12_000_000_000
NUM_SLICES = 5
"""As in prometheus-cpp, a value counts for between 48 and 60 seconds."""
_SCALE = 1 / math.log(1.02)
_ZERO = -1_000_000
"""The bucket of zero and negative values, which have no logarithm."""


class SlidingSummary:
    __slots__ = ("_slice_number", "_slices", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self._slices: list[dict[int, int]] = [{} for _ in range(NUM_SLICES)]
        """Bucket -> number of values, for each slice. Bucket b holds values around 1.02 ** b."""
        self._slice_number = 0

    def observe(self, value: float, now_ns: int) -> None:
        self.count += 1
        self.total += value
        self._forget_old(now_ns)
        current = self._slices[self._slice_number % NUM_SLICES]
        bucket = round(math.log(value) * _SCALE) if value > 0 else _ZERO
        current[bucket] = current.get(bucket, 0) + 1

    def quantiles(self, quantiles: Iterable[float], now_ns: int) -> list[float]:
        """Returns the value at each quantile, or NaN if there are no values of the last minute."""
        self._forget_old(now_ns)
        merged: dict[int, int] = {}
        for buckets in self._slices:
            for bucket, count in buckets.items():
                merged[bucket] = merged.get(bucket, 0) + count
        ordered = sorted(merged.items())
        return [_quantile(ordered, sum(merged.values()), quantile) for quantile in quantiles]

    def _forget_old(self, now_ns: int) -> None:
        number = now_ns // SLICE_NS
        for passed in range(
            self._slice_number + 1, min(number, self._slice_number + NUM_SLICES) + 1
        ):
            self._slices[passed % NUM_SLICES] = {}
        if number > self._slice_number:
            if number - self._slice_number > NUM_SLICES:
                self._slices = [{} for _ in range(NUM_SLICES)]
            self._slice_number = number


def _quantile(ordered: list[tuple[int, int]], total: int, quantile: float) -> float:
    rank = max(math.ceil(quantile * total), 1)
    for bucket, count in ordered:
        rank -= count
        if rank <= 0:
            return 0.0 if bucket == _ZERO else math.exp(bucket / _SCALE)
    return math.nan


class SummaryStatistics(ModelStatistics):
    """ModelStatistics that also keep the summaries."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(name, version)
        self.request_summary_us = SlidingSummary()
        self.queue_summary_us = SlidingSummary()
        self.compute_input_summary_us = SlidingSummary()
        self.compute_infer_summary_us = SlidingSummary()
        self.compute_output_summary_us = SlidingSummary()

    def record_success(
        self,
        batch_size: int,
        start_ns: int,
        queue_start_ns: int,
        compute_start_ns: int,
        end_ns: int,
    ) -> None:
        super().record_success(batch_size, start_ns, queue_start_ns, compute_start_ns, end_ns)
        self.request_summary_us.observe((end_ns - start_ns) // 1000, end_ns)
        self.queue_summary_us.observe((compute_start_ns - queue_start_ns) // 1000, end_ns)

    def record_responses(
        self, requests: Sequence[CompletedRequest], compute_start_ns: int, end_ns: int
    ) -> None:
        super().record_responses(requests, compute_start_ns, end_ns)
        for request in requests:
            self.request_summary_us.observe((end_ns - request.start_ns) // 1000, end_ns)
            self.queue_summary_us.observe(
                (compute_start_ns - request.queue_start_ns) // 1000, end_ns
            )

    def record_unqueued(self, requests: Sequence[CompletedRequest], end_ns: int) -> None:
        super().record_unqueued(requests, end_ns)
        for request in requests:
            self.request_summary_us.observe((end_ns - request.start_ns) // 1000, end_ns)
            self.queue_summary_us.observe(0, end_ns)

    def record_compute(self, num_requests: int, times: BatchTimes) -> None:
        super().record_compute(num_requests, times)
        now_ns = times.compute_end_ns
        for _ in range(num_requests):
            self.compute_input_summary_us.observe(
                (times.compute_input_end_ns - times.compute_start_ns) // 1000, now_ns
            )
            self.compute_infer_summary_us.observe(
                (times.compute_output_start_ns - times.compute_input_end_ns) // 1000, now_ns
            )
            self.compute_output_summary_us.observe(
                (now_ns - times.compute_output_start_ns) // 1000, now_ns
            )


def build_statistics(name: str, version: int, latency: LatencyMetrics) -> ModelStatistics:
    """Returns the statistics of a version that is being loaded."""
    kind = SummaryStatistics if latency.has_summaries else ModelStatistics
    return kind(name, version)
