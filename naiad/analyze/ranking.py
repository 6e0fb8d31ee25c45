"""Ranks configurations by their best measurement and by their gain at equal load.

Rule: only a configuration that is better than the default at equal load ranks above the default,
      once the two were compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from naiad.analyze.checkpoint import Goal
from naiad.analyze.comparison import LoadGain, load_gains
from naiad.analyze.measurement import Load, Measurement
from naiad.analyze.scoring import keeps_limits, trial_score


class Ranked(msgspec.Struct, frozen=True):
    """A configuration with its best measurement and all its measurements."""

    name: str
    best: Measurement
    score: float
    keeps_limits: bool
    """True if the measurement `shown` satisfies all constraints."""
    measurements: list[Measurement]
    """Measurements of the search and the sweep, sorted by load."""
    gains: list[LoadGain] = []
    """Gains at equal load, the load of `median` first. Empty for the default and for a
    configuration that was not compared."""
    median: Measurement | None = None
    """Median of the rounds of the comparison, at the same load for all compared configurations."""

    @property
    def shown(self) -> Measurement:
        """The measurement that stands for the configuration next to others."""
        return self.median if self.median is not None else self.best

    @property
    def gain(self) -> LoadGain | None:
        return self.gains[0] if self.gains else None

    @property
    def is_better(self) -> bool:
        return self.gain is not None and self.gain.is_better


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
    """Ranks configurations by the score of their best measurement.

    If they were compared with the default, their gain at equal load decides.
    """
    single = [one for one in measurements if one.stage != "comparison"]
    rounds = [one for one in measurements if one.stage == "comparison"]
    ranked = _by_score(single, goal)
    gains = load_gains(rounds, goal)
    return _by_gain(ranked, gains, goal) if gains else ranked


def _by_score(measurements: Sequence[Measurement], goal: Goal) -> list[Ranked]:
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
                sorted(group, key=lambda one: one.load),
            )
        )
    return sorted(entries, key=lambda entry: -entry.score)


def _by_gain(
    ranked: Sequence[Ranked], gains: dict[str, dict[Load, LoadGain]], goal: Goal
) -> list[Ranked]:
    """Orders configurations: better ones by gain, the default, other compared ones, the rest."""
    chosen = _chosen_load(ranked, gains)
    entries: list[Ranked] = []
    default: Measurement | None = None
    for entry in ranked:
        own = gains.get(entry.name, {})
        if chosen in own:
            default = own[chosen].default
            ordered = [own[chosen], *(own[load] for load in sorted(own) if load != chosen)]
            entry = msgspec.structs.replace(
                entry,
                median=own[chosen].median,
                keeps_limits=keeps_limits(own[chosen].median, goal),
                gains=ordered,
            )
        entries.append(entry)
    if default is not None:
        entries = [
            msgspec.structs.replace(entry, median=default, keeps_limits=keeps_limits(default, goal))
            if entry.best.is_default
            else entry
            for entry in entries
        ]
    return sorted(entries, key=_order)


def _order(entry: Ranked) -> tuple[int, float]:
    if entry.gain is None:
        return (1, 0.0) if entry.best.is_default else (3, -entry.score)
    return 0 if entry.is_better else 2, -entry.gain.gain


def _chosen_load(ranked: Sequence[Ranked], gains: dict[str, dict[Load, LoadGain]]) -> Load:
    """Returns the load at which gains are reported: that of the best measurement of all compared
    configurations, the default included."""
    compared = [entry for entry in ranked if entry.name in gains or entry.best.is_default]
    loads = {load for own in gains.values() for load in own}
    return next((entry.best.load for entry in compared if entry.best.load in loads), max(loads))


_SAME = 0.01


def _choose(scored: Sequence[tuple[float, Measurement]]) -> tuple[float, Measurement]:
    """Returns the load with the lowest latency among those whose score is close to the best."""
    top = max(value for value, _ in scored)
    near = [pair for pair in scored if pair[0] >= top - _SAME * (1 + abs(top))]
    return min(near, key=lambda pair: pair[1].figure("perf_latency_p99") or 0.0)


def failures(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [measurement for measurement in measurements if measurement.error]
