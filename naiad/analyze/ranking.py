"""Ranks configurations by the score of their best measurement."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.analyze.checkpoint import Goal
from naiad.analyze.measurement import Measurement
from naiad.analyze.metric import score, violation


class Ranked(msgspec.Struct, frozen=True):
    """A configuration with its best measurement and all its measurements."""

    name: str
    best: Measurement
    score: float
    keeps_limits: bool
    measurements: list[Measurement]


def trial_score(measurement: Measurement, base: Measurement | None, goal: Goal) -> float | None:
    """Returns the weighted mean of the scores of all models, or None if the measurement failed."""
    if measurement.error:
        return None
    total = weights = 0.0
    for outcome in measurement.leading:
        model, weight = outcome.model, goal.weights.get(outcome.model, 1.0)
        own = measurement.all_figures(model)
        # If the default does not run, any fixed base gives the same order.
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
    """Returns the best measurement of the default configuration, or None if there is none."""
    candidates = [
        measurement
        for measurement in measurements
        if measurement.is_default and not measurement.error
    ]
    return max(
        candidates,
        key=lambda measurement: measurement.figure("perf_throughput") or 0.0,
        default=None,
    )


def rank(measurements: Sequence[Measurement], goal: Goal) -> list[Ranked]:
    base = default_of(measurements)
    by_name: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if not measurement.error:
            by_name.setdefault(measurement.name, []).append(measurement)
    entries: list[Ranked] = []
    for name, group in by_name.items():
        scored = [
            (trial_score(measurement, base, goal) or 0.0, measurement) for measurement in group
        ]
        best_score, best = _choose(scored)
        entries.append(
            Ranked(
                name,
                best,
                best_score,
                keeps_limits(best, goal),
                sorted(group, key=lambda one: one.concurrency),
            )
        )
    return sorted(entries, key=lambda entry: -entry.score)


_SAME = 0.01


def _choose(scored: Sequence[tuple[float, Measurement]]) -> tuple[float, Measurement]:
    """Returns the load with the lowest latency among those whose score is close to the best."""
    top = max(value for value, _ in scored)
    near = [pair for pair in scored if pair[0] >= top - _SAME * (1 + abs(top))]
    return min(near, key=lambda pair: pair[1].figure("perf_latency_p99") or 0.0)


def failures(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.error]
