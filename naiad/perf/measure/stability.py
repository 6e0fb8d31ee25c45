"""Decides whether a measurement is stable, by perf_analyzer's rule.

The last three windows agree if max/min of throughput and of latency are both at most 1 + stability
percentage.
Out: a Verdict with an explanation: the compared figures and, if they are not stable, the likely
     cause.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

NUM_WINDOWS = 3


class Point(msgspec.Struct, frozen=True):
    """The figures of one window that matter for stability."""

    infer_per_s: float
    latency_us: float
    num_failures: int = 0


class Verdict(msgspec.Struct, frozen=True):
    is_stable: bool
    explanation: str


def judge(
    points: Sequence[Point],
    stability_percent: float,
    latency_name: str,
    scheduled_per_s: float = 0.0,
) -> Verdict:
    """Compares the last windows. `scheduled_per_s` is the rate of an open loop; 0 for a closed
    loop."""
    recent = points[-NUM_WINDOWS:]
    if len(recent) < NUM_WINDOWS:
        return Verdict(False, f"{len(recent)} of {NUM_WINDOWS} windows")
    if any(point.infer_per_s == 0 for point in recent):
        return Verdict(
            False, "no request finished during a window: increase --measurement-interval"
        )
    rate_percent = _spread_percent([point.infer_per_s for point in recent])
    latency_percent = _spread_percent([point.latency_us for point in recent])
    comparison = (
        f"over the last {NUM_WINDOWS} windows, throughput differs by {rate_percent:.1f}% and"
        f" {latency_name} by {latency_percent:.1f}% (limit {stability_percent:g}%)"
    )
    if rate_percent <= stability_percent and latency_percent <= stability_percent:
        return Verdict(True, comparison)
    cause = _cause(recent, scheduled_per_s, latency_percent > stability_percent)
    return Verdict(False, f"{comparison}; {cause}")


def _cause(recent: Sequence[Point], scheduled_per_s: float, is_latency: bool) -> str:
    rising = all(
        later.latency_us > 1.05 * earlier.latency_us
        for earlier, later in itertools.pairwise(recent)
    )
    falling = all(
        later.latency_us < 0.95 * earlier.latency_us
        for earlier, later in itertools.pairwise(recent)
    )
    rate = recent[-1].infer_per_s
    if scheduled_per_s and rate < 0.95 * scheduled_per_s:
        return (
            f"the server completes {rate:.0f} of {scheduled_per_s:.0f} requests per second, so"
            " requests pile up: lower the rate"
        )
    if is_latency and rising:
        return (
            "latency rises from window to window: requests pile up, or the server slows down under"
            " this load"
        )
    if is_latency and falling:
        return (
            "latency falls from window to window: the server is still warming up (increase"
            " --max-trials)"
        )
    if any(point.num_failures for point in recent):
        return "some requests failed, which affects the other requests"
    return (
        "the figures fluctuate: the machines do other work, or the windows are too short (increase"
        " --measurement-interval)"
    )


def _spread_percent(values: Sequence[float]) -> float:
    return 100 * (max(values) / min(values) - 1) if min(values) > 0 else float("inf")
