"""From measurements to an order: the best load of each configuration, the best configurations
first."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.analyze.checkpoint import Goal
from naiad.analyze.measurement import Measurement
from naiad.analyze.metric import score, violation


class Ranked(msgspec.Struct, frozen=True):
    """A configuration, its best measurement, and all of them."""

    name: str
    best: Measurement
    score: float
    keeps_limits: bool
    measurements: list[Measurement]


def trial_score(measurement: Measurement, base: Measurement | None, goal: Goal) -> float | None:
    """None for one that failed. Several models: the weighted mean of theirs."""
    if measurement.error:
        return None
    total = weights = 0.0
    for outcome in measurement.leading:
        model, weight = outcome.model, goal.weights.get(outcome.model, 1.0)
        own = measurement.all_figures(model)
        # Without a working default the first figures seen must do: any fixed base keeps the order.
        before = base.all_figures(model) if base is not None else dict.fromkeys(own, 1.0)
        total += weight * score(
            own, before, goal.objectives.get(model, {}), goal.constraints.get(model, {})
        )
        weights += weight
    return total / weights if weights else None


def keeps_limits(measurement: Measurement, goal: Goal) -> bool:
    return all(
        violation(measurement.all_figures(outcome.model), goal.constraints.get(outcome.model, {}))
        == 0
        for outcome in measurement.leading
    )


def default_of(measurements: Sequence[Measurement]) -> Measurement | None:
    """The best of the configuration as it is."""
    found = [
        measurement
        for measurement in measurements
        if measurement.is_default and not measurement.error
    ]
    return max(
        found, key=lambda measurement: measurement.figure("perf_throughput") or 0.0, default=None
    )


def rank(measurements: Sequence[Measurement], goal: Goal) -> list[Ranked]:
    base = default_of(measurements)
    by_name: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if not measurement.error:
            by_name.setdefault(measurement.name, []).append(measurement)
    found: list[Ranked] = []
    for name, group in by_name.items():
        scored = [
            (trial_score(measurement, base, goal) or 0.0, measurement) for measurement in group
        ]
        best_score, best = _choose(scored)
        found.append(
            Ranked(
                name,
                best,
                best_score,
                keeps_limits(best, goal),
                sorted(group, key=lambda one: one.concurrency),
            )
        )
    return sorted(found, key=lambda ranked: -ranked.score)


_SAME = 0.01


def _choose(scored: Sequence[tuple[float, Measurement]]) -> tuple[float, Measurement]:
    """Of loads that are as good as the best, the one that answers soonest."""
    top = max(found for found, _ in scored)
    near = [pair for pair in scored if pair[0] >= top - _SAME * (1 + abs(top))]
    return min(near, key=lambda pair: pair[1].figure("perf_latency_p99") or 0.0)


def failures(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.error]
