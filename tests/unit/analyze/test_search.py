"""Tests the searches on models of throughput whose maximum is known.

A search must come close to the maximum with a fraction of the measurements of brute force.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from naiad.analyze.brute import Search, brute_search
from naiad.analyze.optuna_search import optuna_search
from naiad.analyze.quick import quick_search
from naiad.analyze.settings import AnalyzedModel, ProfileOptions
from naiad.analyze.space import Space, SpaceTrial, build_space, powers
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.settings.option import OptionError

OPTIONS = ProfileOptions(run_config_search_max_concurrency=256)
Rate = Callable[[int, int, int], float]


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(name="m", max_batch_size=8, **fields)


def space(options: ProfileOptions = OPTIONS) -> Space:
    return build_space(options, [AnalyzedModel(name="m")], {"m": config()})


def closed_loop(service: Callable[[int, int], float]) -> Rate:
    """Returns the throughput of a model that needs service(batch, instances) seconds per batch."""

    def rate(batch: int, instances: int, concurrency: int) -> float:
        used = max(1, min(batch, -(-concurrency // instances)))
        busy = min(instances, -(-concurrency // used))
        return busy * used / service(used, instances) if concurrency else 0.0

    return rate


LANDSCAPES = {
    "best at batch 8, 3 instances": closed_loop(
        lambda batch, count: 0.02 * max(1, (batch / 8) ** 2) * max(1, (count / 3) ** 2)
    ),
    "the larger the better": closed_loop(lambda batch, count: 0.01 + 0.0001 * batch),
    "batches do not help": closed_loop(lambda batch, count: 0.004 * batch * max(1, count / 2)),
    "one instance, large batches": closed_loop(
        lambda batch, count: (0.01 + 0.001 * batch) * count**1.2
    ),
    "two cores": closed_loop(lambda batch, count: (0.005 + 0.002 * batch) * max(1, count / 2)),
}


def run_search(search: Search, tried: Space, rate: Rate) -> tuple[float, int]:
    """Returns the best throughput and the number of measurements."""
    best, count = 0.0, 0
    try:
        trial = next(search)
        while True:
            count += 1
            value = rate(
                int(tried.value(trial.point, "max_batch_size", 1)),
                int(tried.value(trial.point, "instance_count", 1)),
                trial.concurrency,
            )
            best = max(best, value)
            trial = search.send(value / 50 - 1)
    except StopIteration:
        return best, count


@pytest.mark.parametrize("name", LANDSCAPES)
@pytest.mark.parametrize("mode", ["quick", "optuna"])
def test_comes_close_to_the_best_with_a_third_of_the_measurements(name: str, mode: str) -> None:
    full, rate = space(), LANDSCAPES[name]
    best, count = run_search(brute_search(full, is_early_exit=False), full, rate)
    assert count == full.size == 5 * 8 * 9
    search = quick_search(full) if mode == "quick" else optuna_search(full, OPTIONS)
    reached, used = run_search(search, full, rate)
    assert reached >= 0.95 * best
    assert used <= count / 3


def test_failures_do_not_stop_a_search() -> None:
    full = space()

    def run(search: Search) -> list[SpaceTrial]:
        trials = []
        try:
            trial = next(search)
            while True:
                trials.append(trial)
                trial = search.send(None)
        except StopIteration:
            return trials

    assert len(run(quick_search(full))) >= 3
    assert len(run(optuna_search(full, OPTIONS))) >= 3
    assert len(run(brute_search(full, is_early_exit=False))) == full.num_points


def test_a_resumed_search_repeats_the_same_trials() -> None:
    full, rate = space(), LANDSCAPES["two cores"]

    def trials(search: Search) -> list[SpaceTrial]:
        asked = []
        try:
            trial = next(search)
            while True:
                asked.append(trial)
                max_batch_size, count = (
                    int(full.value(trial.point, name, 1))
                    for name in ("max_batch_size", "instance_count")
                )
                trial = search.send(rate(max_batch_size, count, trial.concurrency))
        except StopIteration:
            return asked

    assert trials(optuna_search(full, OPTIONS)) == trials(optuna_search(full, OPTIONS))
    assert trials(quick_search(full)) == trials(quick_search(full))


def test_early_exit_skips_higher_loads() -> None:
    full = space()
    _, count = run_search(
        brute_search(full, is_early_exit=False), full, lambda batch, count, concurrency: 1.0
    )
    _, early_count = run_search(
        brute_search(full, is_early_exit=True), full, lambda batch, count, concurrency: 1.0
    )
    assert early_count < count


def test_dimensions_of_a_space() -> None:
    assert powers(1, 12) == [1, 2, 4, 8, 12]
    assert [dimension.name for dimension in space().dimensions] == [
        "instance_count",
        "max_batch_size",
    ]
    delayed = space(ProfileOptions(run_config_search_max_queue_delay=[0, 100]))
    assert delayed.dimensions[2].values == (0, 100)
    unbatched = build_space(OPTIONS, [AnalyzedModel(name="m")], {"m": ModelConfig(name="m")})
    assert [dimension.name for dimension in unbatched.dimensions] == ["instance_count"]
    llm = build_space(
        OPTIONS, [AnalyzedModel(name="m")], {"m": ModelConfig(name="m", backend="llm")}
    )
    assert [dimension.name for dimension in llm.dimensions] == [
        "parameters.max_num_seqs",
        "parameters.max_num_batched_tokens",
    ]
    disabled = space(ProfileOptions(run_config_search_disable=True, concurrency=[1, 4]))
    assert disabled.num_points == 1
    assert disabled.concurrencies == (1, 4)
    with pytest.raises(OptionError, match="is less than --run-config-search-min-instance-count 4"):
        space(
            ProfileOptions(
                run_config_search_min_instance_count=4, run_config_search_max_instance_count=2
            )
        )


def test_model_config_parameters_define_the_dimensions() -> None:
    spec = AnalyzedModel(
        name="m",
        model_config_parameters={
            "max_batch_size": [4, 16],
            "instance_group": [{"kind": "KIND_CPU", "count": [1, 2]}],
            "dynamic_batching": {"max_queue_delay_microseconds": [100, 300]},
            "parameters": {"threads": {"string_value": ["1", "2"]}},
        },
    )
    explicit = build_space(OPTIONS, [spec], {"m": config()})
    assert {dimension.name: dimension.values for dimension in explicit.dimensions} == {
        "max_batch_size": (4, 16),
        "instance_count": (1, 2),
        "queue_delay_us": (100, 300),
        "parameters.threads": ("1", "2"),
    }
    assert explicit.num_points == 16


def test_formula_concurrency_fills_the_batches() -> None:
    full = space()
    point = next(
        point
        for point in full.points()
        if full.values(point) == {"m": {"instance_count": 3, "max_batch_size": 8}}
    )
    assert full.formula_concurrency(point) == 64
    fixed = space(ProfileOptions(concurrency=[1, 10, 50]))
    assert fixed.formula_concurrency(point) == 50
