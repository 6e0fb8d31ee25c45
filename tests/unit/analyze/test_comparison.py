"""Tests gains at equal load: their size, their noise and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from naiad.analyze.checkpoint import Goal
from naiad.analyze.comparison import LoadGain, load_gains, median_of, median_range
from naiad.analyze.measurement import Measurement, ModelOutcome
from naiad.analyze.metric import Limit
from naiad.analyze.ranking import rank

GOAL = Goal({"m": {"perf_throughput": 1.0}})
LIMITED = Goal({"m": {"perf_throughput": 1.0}}, {"m": {"perf_latency_p99": Limit(maximum=50)}})


def measured(
    name: str, rate: float, concurrency: int = 16, round: int = 0, p99: float = 10.0
) -> Measurement:
    values = {} if name == "default" else {"instance_count": int(name)}
    figures = {"perf_throughput": rate, "perf_latency_p99": p99}
    outcome = ModelOutcome("m", f"m_config_{name}", 4, "Enabled", "1:CPU", values, figures)
    return Measurement(
        f"{name}/{concurrency}/{round}",
        concurrency,
        1,
        [outcome],
        {"cpu_used_ram": 50.0},
        stage="comparison" if round else "search",
        round=round,
    )


def in_rounds(
    name: str, rates: Sequence[float], concurrency: int = 16, p99: float = 10.0
) -> list[Measurement]:
    return [measured(name, rate, concurrency, number, p99) for number, rate in enumerate(rates, 1)]


def gain_of(rounds: list[Measurement], goal: Goal = GOAL, concurrency: int = 16) -> LoadGain:
    return load_gains(rounds, goal)["m_config_1"][concurrency, 1]


def test_equal_configurations_are_no_better() -> None:
    gain = gain_of(
        in_rounds("default", [100, 98, 103, 101, 99]) + in_rounds("1", [101, 100, 100, 99, 103])
    )
    assert gain.gain == pytest.approx(0.0)
    assert gain.low < 0 < gain.high
    assert not gain.is_better
    assert gain.verdict == "no better than what you have"


def test_a_better_configuration_has_its_gain_and_its_noise() -> None:
    gain = gain_of(
        in_rounds("default", [100, 100, 110, 90, 100]) + in_rounds("1", [150, 160, 165, 126, 145])
    )
    assert gain.gain == pytest.approx(0.5)
    assert [gain.low, gain.high] == pytest.approx([0.4, 0.6])
    assert gain.is_better
    assert gain.factor == "x1.50 (x1.40 to x1.60)"
    assert gain.percent == "+50.0 (+40.0 to +60.0)"


def test_a_drift_of_the_machine_is_not_noise() -> None:
    rates = [100.0, 80.0, 60.0, 90.0, 120.0]
    gain = gain_of(in_rounds("default", rates) + in_rounds("1", [1.1 * rate for rate in rates]))
    assert [gain.low, gain.high] == pytest.approx([0.1, 0.1])
    assert gain.is_better


@pytest.mark.parametrize("factor", [1.01, 0.9])
def test_a_tiny_gain_and_a_loss_are_no_better(factor: float) -> None:
    gain = gain_of(in_rounds("default", [100] * 5) + in_rounds("1", [100 * factor] * 5))
    assert gain.gain == pytest.approx(factor - 1)
    assert not gain.is_better


def test_needs_three_rounds_in_which_both_succeeded() -> None:
    rounds = in_rounds("default", [100, 100, 100]) + in_rounds("1", [200, 200])
    assert load_gains(rounds, GOAL) == {}
    assert load_gains([*rounds, measured("1", 200, round=3)], GOAL)


def test_compares_only_equal_loads() -> None:
    rounds = in_rounds("default", [100, 100, 100], 1) + in_rounds("1", [155, 155, 155], 64)
    assert load_gains(rounds, GOAL) == {}


def test_a_configuration_that_violates_a_constraint_is_no_better() -> None:
    default = in_rounds("default", [100] * 3)
    assert not gain_of(default + in_rounds("1", [200] * 3, p99=60), LIMITED).is_better
    assert gain_of(default + in_rounds("1", [200] * 3, p99=40), LIMITED).is_better


def test_satisfying_a_constraint_that_the_default_violates_is_better() -> None:
    rounds = in_rounds("default", [100] * 3, p99=60) + in_rounds("1", [100] * 3, p99=40)
    assert gain_of(rounds, LIMITED).is_better


def test_the_range_of_the_median_narrows_with_more_rounds() -> None:
    assert median_range([3, 1, 2]) == (1, 3)
    assert median_range(list(range(8))) == (0, 7)
    assert median_range(list(range(9))) == (1, 7)
    assert median_range(list(range(20))) == (5, 14)


def test_the_median_covers_all_figures() -> None:
    median = median_of(in_rounds("1", [10, 30, 20]))
    assert median.figure("perf_throughput") == 20
    assert median.figure("cpu_used_ram") == 50


SEARCH = [
    measured("default", 100, 16),
    measured("1", 155, 512),
    measured("2", 150, 512),
    measured("3", 120, 512),
]


def test_the_load_alone_is_not_a_gain() -> None:
    """The default was searched at concurrency 16 only, and is as fast as the winner at 512."""
    rounds = in_rounds("default", [151, 149, 150], 512) + in_rounds("1", [155, 148, 150], 512)
    rounds += in_rounds("default", [100, 99, 101], 16) + in_rounds("1", [100, 102, 99], 16)
    ranked = rank([*SEARCH, *rounds], GOAL)
    assert [entry.name for entry in ranked[:2]] == ["m_config_default", "m_config_1"]
    assert not any(entry.is_better for entry in ranked)
    assert ranked[1].gain is not None
    assert ranked[1].gain.gain == pytest.approx(0.0)
    assert [gain.load for gain in ranked[1].gains] == [(512, 1), (16, 1)]
    assert ranked[0].shown.figure("perf_throughput") == 150, "the default at the same load"
    assert ranked[0].shown.load == ranked[1].shown.load == (512, 1)


def test_the_gain_in_the_comparison_decides_the_order() -> None:
    rounds = in_rounds("default", [120, 121, 119], 512)
    rounds += in_rounds("1", [130, 132, 131], 512) + in_rounds("2", [144, 145, 144], 512)
    ranked = rank([*SEARCH, *rounds], GOAL)
    assert [entry.name for entry in ranked] == [
        "m_config_2",
        "m_config_1",
        "m_config_default",
        "m_config_3",
    ]
    assert ranked[0].gain is not None
    assert ranked[0].gain.gain == pytest.approx(0.2)


def test_gains_are_reported_at_the_load_at_which_any_was_best() -> None:
    """The default reaches most at concurrency 16, so a gain at 512 does not make a winner."""
    search = [measured("default", 300, 16), measured("default", 200, 512), measured("1", 280, 512)]
    rounds = in_rounds("default", [300] * 3, 16) + in_rounds("1", [250] * 3, 16)
    rounds += in_rounds("default", [200] * 3, 512) + in_rounds("1", [280] * 3, 512)
    ranked = rank([*search, *rounds], GOAL)
    assert ranked[0].name == "m_config_default"
    assert ranked[1].gain is not None
    assert ranked[1].gain.load == (16, 1)
    assert not ranked[1].is_better
