"""When figures may be believed: perf_analyzer's rule, said aloud.

The last three windows agree when max/min of throughput and of latency are both within 1 + stability
percentage.
Out: Verdict, with one line that says what was compared, and when unstable what moved and what
     usually causes that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

NUM_WINDOWS = 3


class Point(msgspec.Struct, frozen=True):
    """One window, as far as stability goes."""

    infer_per_s: float
    latency_us: float
    num_failures: int = 0


class Verdict(msgspec.Struct, frozen=True):
    is_stable: bool
    explanation: str


def judge(
    points: Sequence[Point], stability_percent: float, latency_name: str, wanted_per_s: float = 0.0
) -> Verdict:
    """`wanted_per_s`: what an open loop was to send; 0 for a closed one."""
    recent = points[-NUM_WINDOWS:]
    if len(recent) < NUM_WINDOWS:
        return Verdict(False, f"{len(recent)} of {NUM_WINDOWS} windows")
    if any(point.infer_per_s == 0 for point in recent):
        return Verdict(
            False, "a window had no finished request: use a longer --measurement-interval"
        )
    rate_percent = _spread_percent([point.infer_per_s for point in recent])
    latency_percent = _spread_percent([point.latency_us for point in recent])
    compared = f"throughput {rate_percent:.1f}% and {latency_name} {latency_percent:.1f}% apart over the last {NUM_WINDOWS} windows"
    if rate_percent <= stability_percent and latency_percent <= stability_percent:
        return Verdict(True, f"{compared} (limit {stability_percent:g}%)")
    return Verdict(
        False,
        f"{compared} (limit {stability_percent:g}%){_cause(recent, wanted_per_s, latency_percent > stability_percent)}",
    )


def _cause(recent: Sequence[Point], wanted_per_s: float, is_latency: bool) -> str:
    rising = all(
        later.latency_us > 1.05 * earlier.latency_us
        for earlier, later in itertools.pairwise(recent)
    )
    falling = all(
        later.latency_us < 0.95 * earlier.latency_us
        for earlier, later in itertools.pairwise(recent)
    )
    if wanted_per_s and recent[-1].infer_per_s < 0.95 * wanted_per_s:
        return f"; the server answers {recent[-1].infer_per_s:.0f} of {wanted_per_s:.0f} per second, so requests pile up: lower the rate"
    if is_latency and rising:
        return "; latency rises from window to window: requests pile up, or the server slows down under this load"
    if is_latency and falling:
        return "; latency falls from window to window: the server is still warming up, measure longer (--max-trials)"
    if any(point.num_failures for point in recent):
        return "; some requests failed, which disturbs the rest"
    return "; it goes up and down: other work on the machines, or windows too short (--measurement-interval)"


def _spread_percent(values: Sequence[float]) -> float:
    return 100 * (max(values) / min(values) - 1) if min(values) > 0 else float("inf")
