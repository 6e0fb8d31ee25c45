"""Scores measurements by the goal of a job: objectives, constraints and the weights of models."""

from __future__ import annotations

from naiad.analyze.checkpoint import Goal
from naiad.analyze.measurement import Measurement
from naiad.analyze.metric import gain, score, violation


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


def total_gain(measurement: Measurement, base: Measurement, goal: Goal) -> float:
    """Returns the weighted mean of the gains of all models, without regard to constraints."""
    total = weights = 0.0
    for outcome in measurement.leading:
        model, weight = outcome.model, goal.weights.get(outcome.model, 1.0)
        total += weight * gain(
            measurement.all_figures(model),
            base.all_figures(model),
            goal.objectives.get(model, {}),
        )
        weights += weight
    return total / weights if weights else 0.0


def keeps_limits(measurement: Measurement, goal: Goal) -> bool:
    return all(
        violation(measurement.all_figures(outcome.model), goal.constraints.get(outcome.model, {}))
        == 0
        for outcome in measurement.leading
    )


def exceeds_latency(measurement: Measurement, goal: Goal) -> bool:
    """True if a latency is above its limit; a higher load only makes it worse."""
    for outcome in measurement.leading:
        figures = measurement.all_figures(outcome.model)
        for name, limit in goal.constraints.get(outcome.model, {}).items():
            if (
                name.startswith("perf_latency")
                and limit.maximum is not None
                and figures.get(name, 0.0) > limit.maximum
            ):
                return True
    return False
