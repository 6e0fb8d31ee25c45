"""Compares configurations with the default at equal load.

In:  measurements of rounds. In each round the default and the candidates are measured one after
     the other, at the same loads.
Out: the gain of each candidate at each load, with the range of the rounds as its noise.
Rule: a configuration gets credit only for what it does better than the default at the same load in
      the same round. The load alone never counts as a gain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec

from naiad.analyze.checkpoint import Goal
from naiad.analyze.measurement import Load, Measurement, ModelOutcome
from naiad.analyze.scoring import keeps_limits, total_gain

MIN_ROUNDS = 3
"""Minimum number of rounds. Two rounds say nothing about the noise."""
MIN_GAIN = 0.02
"""A smaller gain counts as no gain, because a change of the machine's state can cause it."""
_CONFIDENCE = 0.95

NO_BETTER = "no better than what you have"


class LoadGain(msgspec.Struct, frozen=True):
    """The gain of a configuration over the default at one load; 0.5 means 50% better."""

    name: str
    gain: float
    """Gain of the median figures."""
    low: float
    high: float
    """The gain of single rounds lies between `low` and `high`."""
    num_rounds: int
    is_better: bool
    median: Measurement
    default: Measurement
    """Median figures of the configuration and of the default."""

    @property
    def load(self) -> Load:
        return self.median.load

    @property
    def factor(self) -> str:
        """The gain as a factor with its range, e.g. `x1.05 (x1.01 to x1.08)`."""
        return f"x{1 + self.gain:.2f} (x{1 + self.low:.2f} to x{1 + self.high:.2f})"

    @property
    def percent(self) -> str:
        """The gain in percent with its range, e.g. `+5.0 (+1.2 to +8.1)`."""
        return f"{100 * self.gain:+.1f} ({100 * self.low:+.1f} to {100 * self.high:+.1f})"

    @property
    def verdict(self) -> str:
        return "better" if self.is_better else NO_BETTER


def load_gains(rounds: Sequence[Measurement], goal: Goal) -> dict[str, dict[Load, LoadGain]]:
    """Returns the gains by the name of the configuration and the load.

    A configuration has no gain at a load if fewer than MIN_ROUNDS rounds succeeded for both it and
    the default.
    """
    default_rounds: dict[Load, dict[int, Measurement]] = {}
    candidate_rounds: dict[tuple[str, Load], dict[int, Measurement]] = {}
    for one in rounds:
        if one.error:
            continue
        if one.is_default:
            default_rounds.setdefault(one.load, {})[one.round] = one
        else:
            candidate_rounds.setdefault((one.name, one.load), {})[one.round] = one
    gains: dict[str, dict[Load, LoadGain]] = {}
    for (name, load), own in candidate_rounds.items():
        before = default_rounds.get(load, {})
        numbers = sorted(own.keys() & before.keys())
        if len(numbers) >= MIN_ROUNDS:
            pairs = [(own[number], before[number]) for number in numbers]
            gains.setdefault(name, {})[load] = _load_gain(name, pairs, goal)
    return gains


def _load_gain(name: str, pairs: Sequence[tuple[Measurement, Measurement]], goal: Goal) -> LoadGain:
    median = median_of([own for own, _ in pairs])
    default = median_of([before for _, before in pairs])
    gain = total_gain(median, default, goal)
    low, high = median_range([total_gain(own, before, goal) for own, before in pairs])
    low, high = min(low, gain), max(high, gain)
    return LoadGain(
        name,
        gain,
        low,
        high,
        len(pairs),
        keeps_limits(median, goal)
        and (_only_default_violates(pairs, goal) or (low > 0 and gain >= MIN_GAIN)),
        median,
        default,
    )


def _only_default_violates(pairs: Sequence[tuple[Measurement, Measurement]], goal: Goal) -> bool:
    return all(keeps_limits(own, goal) and not keeps_limits(before, goal) for own, before in pairs)


def median_range(values: Sequence[float]) -> tuple[float, float]:
    """Returns the range that contains the true median with a confidence of 95%.

    With up to 8 values this is the range of all values. With more values it narrows: the sign test
    tells how many of the lowest and highest values can be left out.
    """
    ordered = sorted(values)
    count, skipped, tail = len(ordered), 0, 0.0
    for number in range(count // 2):
        tail += math.comb(count, number) / 2**count
        if 2 * tail > 1 - _CONFIDENCE:
            break
        skipped = number
    return ordered[skipped], ordered[-1 - skipped]


def median_of(rounds: Sequence[Measurement]) -> Measurement:
    """Returns a measurement with the median of each figure."""
    first = rounds[0]
    outcomes: list[ModelOutcome] = []
    for position, outcome in enumerate(first.outcomes):
        figures = [one.outcomes[position].figures for one in rounds]
        outcomes.append(msgspec.structs.replace(outcome, figures=_medians(figures)))
    return msgspec.structs.replace(
        first,
        key="",
        outcomes=outcomes,
        figures=_medians([one.figures for one in rounds]),
        is_stable=all(one.is_stable for one in rounds),
        seconds=sum(one.seconds for one in rounds),
    )


def _medians(figures: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in figures for name in one)
    return {
        name: statistics.median([one[name] for one in figures if name in one]) for name in names
    }
