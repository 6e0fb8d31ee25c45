"""Tests objectives, constraints and the order of configurations."""

from __future__ import annotations

from typing import Any

import pytest

from naiad.analyze.checkpoint import Goal
from naiad.analyze.goal import constraints_of, objectives_of
from naiad.analyze.measurement import Measurement, ModelOutcome
from naiad.analyze.metric import Limit, gain, metric_name, score, violation
from naiad.analyze.ranking import default_of, rank
from naiad.analyze.scoring import keeps_limits, trial_score
from naiad.settings.option import OptionError

BASE = {"perf_throughput": 100.0, "perf_latency_p99": 10.0}


def test_gain_is_relative_to_the_default() -> None:
    assert gain({"perf_throughput": 150.0}, BASE, {"perf_throughput": 1}) == 0.5
    assert gain({"perf_latency_p99": 5.0}, BASE, {"perf_latency_p99": 1}) == 1.0
    both = {"perf_throughput": 200.0, "perf_latency_p99": 20.0}
    assert gain(both, BASE, {"perf_throughput": 3, "perf_latency_p99": 1}) == pytest.approx(
        (3 * 1.0 - 0.5) / 4
    )


def test_satisfying_the_constraints_outranks_any_gain() -> None:
    limits = {"perf_latency_p99": Limit(maximum=20)}
    slow = {"perf_throughput": 1000.0, "perf_latency_p99": 25.0}
    slower = {"perf_throughput": 2000.0, "perf_latency_p99": 60.0}
    fine = {"perf_throughput": 60.0, "perf_latency_p99": 19.0}
    scores = [
        score(figures, BASE, {"perf_throughput": 1}, limits) for figures in (fine, slow, slower)
    ]
    assert scores == sorted(scores, reverse=True)
    assert violation(slow, limits) == pytest.approx(0.25)
    assert violation({"perf_throughput": 50.0}, {"perf_throughput": Limit(minimum=100)}) == 0.5


def test_reads_objectives_and_constraints() -> None:
    assert objectives_of(["throughput", "perf_latency_p99"]) == {
        "perf_throughput": 1,
        "perf_latency_p99": 1,
    }
    assert objectives_of({"perf_throughput": "10"}) == {"perf_throughput": 10}
    assert constraints_of({"perf_latency_p99": {"max": 5}}) == {
        "perf_latency_p99": Limit(None, 5.0)
    }
    assert metric_name("latency_p99") == "perf_latency_p99"


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (objectives_of, {"speed": 1}, "not a metric"),
        (objectives_of, {"perf_throughput": "much"}, "must be a number"),
        (objectives_of, {"perf_throughput": 0}, "more than 0"),
        (objectives_of, 3, "expected a list"),
        (constraints_of, {"perf_throughput": 5}, "needs min or max"),
        (constraints_of, {"perf_throughput": {"atleast": 5}}, "needs min or max"),
        (constraints_of, {"perf_throughput": {"min": "x"}}, "must be a number"),
    ],
)
def test_rejects_invalid_goals(read: Any, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(value)


def measured(
    name: str, rate: float, p99: float, concurrency: int = 1, error: str = ""
) -> Measurement:
    values = {} if name == "default" else {"instance_count": int(name)}
    outcome = ModelOutcome(
        "m",
        f"m_config_{name}",
        4,
        "Enabled",
        "1:CPU",
        values,
        {} if error else {"perf_throughput": rate, "perf_latency_p99": p99},
    )
    return Measurement(
        f"{name}/{concurrency}", concurrency, 1, [outcome], {"cpu_used_ram": 50.0}, error=error
    )


GOAL = Goal(
    {"m": {"perf_throughput": 1.0}}, {"m": {"perf_latency_p99": Limit(maximum=50)}}, {"m": 1.0}
)


def test_ranks_configurations() -> None:
    measurements = [
        measured("default", 100, 10),
        measured("1", 300, 80, 8),
        measured("1", 200, 40, 4),
        measured("2", 250, 45),
        measured("3", 0, 0, error="out of memory"),
    ]
    ranked = rank(measurements, GOAL)
    assert [entry.name for entry in ranked] == ["m_config_2", "m_config_1", "m_config_default"]
    assert ranked[1].best.concurrency == 4, "300/s violates the limit"
    assert [one.concurrency for one in ranked[1].measurements] == [4, 8]
    assert not keeps_limits(measurements[1], GOAL)
    assert trial_score(measurements[4], measurements[0], GOAL) is None
    assert default_of(measurements) is measurements[0]


def test_prefers_the_lower_latency_among_equal_loads() -> None:
    ranked = rank(
        [measured("1", 1000, 40, 64), measured("1", 998, 20, 32)],
        Goal({"m": {"perf_throughput": 1.0}}),
    )
    assert ranked[0].best.concurrency == 32


def test_ranks_configurations_if_the_default_failed() -> None:
    ranked = rank(
        [measured("default", 0, 0, error="x"), measured("1", 10, 5), measured("2", 20, 5)], GOAL
    )
    assert ranked[0].name == "m_config_2"


def test_the_score_of_several_models_is_weighted() -> None:
    def pair(first: float, second: float) -> Measurement:
        outcomes = [
            ModelOutcome(
                model, f"{model}_config_0", 1, "", "1:CPU", {"a": 1}, {"perf_throughput": rate}
            )
            for model, rate in (("a", first), ("b", second))
        ]
        return Measurement("k", 1, 1, outcomes)

    goal = Goal(
        {"a": {"perf_throughput": 1}, "b": {"perf_throughput": 1}}, {}, {"a": 3.0, "b": 1.0}
    )
    assert trial_score(pair(200, 100), pair(100, 100), goal) == 0.75
    assert pair(200, 100).figure("perf_throughput") == 300
