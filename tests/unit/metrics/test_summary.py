import math
import random

import pytest

from naiad.core.job import Job
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import BatchTimes, ModelStatistics
from naiad.metrics.summary import SLICE_NS, SlidingSummary, SummaryStatistics, build_statistics
from naiad.settings import LatencyMetrics

QUANTILES = [0.5, 0.9, 0.99, 1.0]


def test_quantiles_are_within_one_percent() -> None:
    summary = SlidingSummary()
    values = [random.Random(1).lognormvariate(6, 2) for _ in range(1)] + [
        random.Random(seed).lognormvariate(6, 2) for seed in range(5000)
    ]
    for value in values:
        summary.observe(value, 0)
    values.sort()
    for quantile, estimate in zip(QUANTILES, summary.quantiles(QUANTILES, 0), strict=True):
        assert estimate == pytest.approx(values[math.ceil(quantile * len(values)) - 1], rel=0.0101)
    assert summary.count == len(values)
    assert summary.total == pytest.approx(sum(values))


def test_quantiles_of_no_values_are_nan() -> None:
    assert all(math.isnan(value) for value in SlidingSummary().quantiles(QUANTILES, 0))


def test_counts_values_of_zero() -> None:
    summary = SlidingSummary()
    summary.observe(0, 0)
    summary.observe(100, 0)
    low, high = summary.quantiles([0.5, 1.0], 0)
    assert low == 0
    assert high == pytest.approx(100, rel=0.0101)


def test_forgets_old_values_but_not_their_count() -> None:
    summary = SlidingSummary()
    start_ns = 1000 * SLICE_NS
    summary.observe(10, start_ns)
    for slices in range(5):
        assert summary.quantiles([0.5], start_ns + slices * SLICE_NS)[0] == pytest.approx(
            10, rel=0.0101
        )
    summary.observe(20, start_ns + 4 * SLICE_NS)
    assert summary.quantiles([0.01], start_ns + 5 * SLICE_NS)[0] == pytest.approx(20, rel=0.0101)
    assert math.isnan(summary.quantiles([0.5], start_ns + 500 * SLICE_NS)[0])
    assert (summary.count, summary.total) == (2, 30)


def test_accepts_values_from_before_the_latest_one() -> None:
    summary = SlidingSummary()
    summary.observe(10, 100 * SLICE_NS)
    summary.observe(10, 99 * SLICE_NS)  # another execution, recorded a moment late
    assert summary.count == 2
    assert summary.quantiles([0.5], 100 * SLICE_NS)[0] == pytest.approx(10, rel=0.0101)


def test_statistics_keep_summaries_only_if_they_are_enabled() -> None:
    assert type(build_statistics("m", 1, LatencyMetrics())) is ModelStatistics
    statistics = build_statistics("m", 1, LatencyMetrics(has_summaries=True))
    assert isinstance(statistics, SummaryStatistics)
    statistics.record_compute(1, BatchTimes(5_000_000, 6_000_000, 8_000_000, 9_000_000))
    statistics.record_success(2, 1_000_000, 2_000_000, 5_000_000, 9_000_000)
    assert statistics.inference_count == 2
    totals = {
        name: getattr(statistics, f"{name}_summary_us").total
        for name in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    }
    assert totals == {
        "request": 8000,
        "queue": 3000,
        "compute_input": 1000,
        "compute_infer": 2000,
        "compute_output": 1000,
    }


@pytest.mark.parametrize("way", ["one by one", "a batch", "an ensemble"])
def test_summaries_include_each_request_for_every_way_of_counting(way: str) -> None:
    statistics = build_statistics("m", 1, LatencyMetrics(has_summaries=True))
    assert isinstance(statistics, SummaryStatistics)
    requests = [
        Job(InferRequest("m", []), ResponseStream(), 1_000_000, 1, 2_000_000) for _ in range(3)
    ]
    times = BatchTimes(5_000_000, 6_000_000, 8_000_000, 9_000_000)
    if way == "one by one":
        statistics.record_execution(3, times)
        statistics.record_compute(3, times)
        for request in requests:
            statistics.record_success(
                1,
                request.start_ns,
                request.queue_start_ns,
                times.compute_start_ns,
                times.compute_end_ns,
            )
    elif way == "a batch":
        statistics.record_execution(3, times)
        statistics.record_compute(3, times)
        statistics.record_responses(requests, times.compute_start_ns, times.compute_end_ns)
    else:
        statistics.record_execution(1, times, 3)
        statistics.record_compute(3, times)
        statistics.record_unqueued(requests, times.compute_end_ns)
    assert (statistics.request_summary_us.count, statistics.request_summary_us.total) == (3, 24_000)
    assert (statistics.queue_summary_us.count, statistics.queue_summary_us.total) == (
        3,
        0 if way == "an ensemble" else 9000,
    )
    assert (
        statistics.compute_infer_summary_us.count,
        statistics.compute_infer_summary_us.total,
    ) == (3, 6000)
