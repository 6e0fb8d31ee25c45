"""Tests the stages of an analysis with a fake bench: search, sweep and comparison."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from naiad.analyze.brute import brute_search
from naiad.analyze.checkpoint import FILE, Checkpoint, CheckpointJob, Goal
from naiad.analyze.measurement import Measurement, ModelOutcome
from naiad.analyze.metric import Limit
from naiad.analyze.progress import SearchProgress
from naiad.analyze.quick import quick_search
from naiad.analyze.ranking import Ranked, rank
from naiad.analyze.settings import AnalyzedModel, ProfileOptions
from naiad.analyze.space import Space, SpaceTrial, build_space
from naiad.analyze.study import Study, UnusableModelError, sweep_concurrencies
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.perf.report.progress import LiveLine

Rate = Callable[[dict[str, Any], SpaceTrial], float]
OPTIONS = ProfileOptions(
    run_config_search_max_instance_count=2,
    run_config_search_max_model_batch_size=4,
    comparison_rounds=3,
)
GOAL = Goal({"m": {"perf_throughput": 1.0}})


class KilledError(Exception):
    pass


class FakeBench:
    """Computes figures instead of measuring them.

    Raises KilledError after `max_count` measurements.
    """

    def __init__(self, space: Space, rate: Rate, max_count: int = 10**6) -> None:
        self._space = space
        self._rate = rate
        self._max_count = max_count
        self.trials: list[SpaceTrial] = []

    def key(self, trial: SpaceTrial) -> str:
        return json.dumps([trial.point, trial.concurrency, trial.batch_size, trial.round])

    def describe(self, trial: SpaceTrial) -> str:
        return self.key(trial)

    async def measure(self, trial: SpaceTrial) -> Measurement:
        if len(self.trials) == self._max_count:
            raise KilledError
        self.trials.append(trial)
        values = self._space.values(trial.point).get("m", {})
        name = "_".join(str(value) for value in values.values()) or "default"
        rate = self._rate(values, trial)
        figures = {
            "perf_throughput": rate,
            "perf_latency_p99": 1000 * trial.concurrency / max(1, rate),
        }
        return Measurement(
            self.key(trial),
            trial.concurrency,
            trial.batch_size,
            [ModelOutcome("m", f"m_config_{name}", 4, "", "", values, figures if rate > 1 else {})],
            error="" if rate > 1 else "wrong shape",
            stage=trial.stage,
            round=trial.round,
        )


class Analysis:
    def __init__(self, folder: Path, options: ProfileOptions = OPTIONS, goal: Goal = GOAL) -> None:
        self.folder = folder
        self.options = options
        self.space = build_space(
            options, [AnalyzedModel(name="m")], {"m": ModelConfig(name="m", max_batch_size=4)}
        )
        self.job = CheckpointJob(
            ["m"], "f", "quick", goal, "naiad analyze", "machine", "now", "1", 1
        )

    def run(self, rate: Rate, max_count: int = 10**6) -> list[SpaceTrial]:
        """Runs the analysis and returns the trials that were measured."""
        checkpoint = Checkpoint(self.folder)
        known = checkpoint.begin(self.job)
        bench = FakeBench(self.space, rate, max_count)
        progress = SearchProgress(LiveLine(False), "m", 1, len(known))
        study = Study(self.options, self.space, bench, self.job, checkpoint, progress)
        search = (
            brute_search(self.space, is_early_exit=False)
            if self.options.run_config_search_mode == "brute"
            else quick_search(self.space)
        )
        try:
            asyncio.run(study.run(search))
        finally:
            checkpoint.close()
        return bench.trials

    def ranked(self) -> list[Ranked]:
        checkpoint = Checkpoint(self.folder)
        checkpoint.close()
        return rank(list(checkpoint.history.measurements["m"].values()), self.job.goal)


def saturating(trial: SpaceTrial) -> float:
    """Returns a throughput that rises with the load up to concurrency 64."""
    return 100.0 * min(64, trial.concurrency)


def flat(values: dict[str, Any], trial: SpaceTrial) -> float:
    """Every configuration is as fast as the default; only the load counts. Rounds differ by 1%."""
    noise = (trial.round + bool(values)) % 3 - 1 if trial.round else 0
    return saturating(trial) * (1 + 0.01 * noise)


def better(values: dict[str, Any], trial: SpaceTrial) -> float:
    """Two instances are 30% faster than the default."""
    return saturating(trial) * (1.3 if values.get("instance_count") == 2 else 1.0)


def test_a_higher_load_is_not_credited_to_a_configuration(tmp_path: Path) -> None:
    analysis = Analysis(tmp_path)
    analysis.run(flat)
    ranked = analysis.ranked()
    assert ranked[0].name == "m_config_default"
    assert not any(entry.is_better for entry in ranked)
    compared = [entry for entry in ranked if entry.gain is not None]
    assert len(compared) == 3
    for entry in compared:
        assert entry.gain is not None
        assert entry.gain.gain == pytest.approx(0)
        assert entry.gain.low < 0 < entry.gain.high


def test_a_better_configuration_gets_its_gain_at_every_compared_load(tmp_path: Path) -> None:
    analysis = Analysis(tmp_path)
    analysis.run(better)
    winner = analysis.ranked()[0]
    assert winner.best.outcomes[0].values["instance_count"] == 2
    assert winner.is_better
    assert [gain.load for gain in winner.gains] == [(64, 1), (16, 1)]
    assert [gain.gain for gain in winner.gains] == pytest.approx([0.3, 0.3])


def test_the_comparison_measures_in_turns(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, num_configs_per_model=1)
    trials = [one for one in Analysis(tmp_path, options).run(better) if one.stage == "comparison"]
    turns = [(one.round, one.point == ()) for one in trials if one.concurrency == 64]
    assert turns == [(1, True), (1, False), (2, True), (2, False), (3, True), (3, False)]


def test_the_best_configurations_and_the_default_are_swept(tmp_path: Path) -> None:
    analysis = Analysis(tmp_path)
    analysis.run(better)
    powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert list(sweep_concurrencies(analysis.space)) == powers
    ranked = analysis.ranked()
    default = next(entry for entry in ranked if entry.best.is_default)
    for entry in [*ranked[:2], default]:
        assert {one.concurrency for one in entry.measurements} >= set(powers)


def test_a_sweep_ends_above_the_latency_limit_or_after_a_failure(tmp_path: Path) -> None:
    limited = Goal(GOAL.objectives, {"m": {"perf_latency_p99": Limit(maximum=15)}})
    analysis = Analysis(tmp_path / "limit", goal=limited)
    analysis.run(better)
    default = next(entry for entry in analysis.ranked() if entry.best.is_default)
    assert max(one.concurrency for one in default.measurements) == 128, "the first above 15 ms"

    def fails_above_32(values: dict[str, Any], trial: SpaceTrial) -> float:
        return 0 if not values and trial.concurrency > 32 else better(values, trial)

    failing = Analysis(tmp_path / "failure")
    trials = failing.run(fails_above_32)
    swept = [one.concurrency for one in trials if one.point == () and one.stage == "sweep"]
    assert max(swept) == 64
    failed_rounds = [one for one in trials if one.stage == "comparison" and one.concurrency == 64]
    assert {one.round for one in failed_rounds} == {1}, "a load that fails is not repeated"


def test_the_users_concurrencies_are_the_only_loads(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, concurrency=[4, 10])
    trials = Analysis(tmp_path, options).run(better)
    assert {one.concurrency for one in trials} == {4, 10}


def test_the_sweep_can_be_disabled(tmp_path: Path) -> None:
    options = msgspec.structs.replace(OPTIONS, concurrency_sweep_disable=True)
    trials = Analysis(tmp_path, options).run(better)
    assert {one.stage for one in trials} == {"search", "comparison"}


def test_an_interrupted_analysis_resumes_in_every_stage(tmp_path: Path) -> None:
    whole = Analysis(tmp_path / "whole").run(better)
    for count in range(0, len(whole), 3):
        analysis = Analysis(tmp_path / str(count))
        with pytest.raises(KilledError):
            analysis.run(better, count)
        resumed = analysis.run(better)
        repeated = set(whole[:count]) & set(resumed)
        assert set(whole[:count]) | set(resumed) == set(whole)
        assert all(one.stage == "comparison" for one in repeated)
        assert len({one.round for one in repeated}) <= 1, "only the interrupted round is repeated"
        assert analysis.run(better) == []
        assert analysis.ranked()[0].is_better


def test_stops_if_the_default_fails_and_says_how_to_provide_data(tmp_path: Path) -> None:
    analysis = Analysis(tmp_path)
    with pytest.raises(UnusableModelError) as raised:
        analysis.run(lambda values, trial: 0)
    assert "wrong shape" in str(raised.value)
    assert '--perf-analyzer-flags \'{"input-data": "data.json"}\'' in str(raised.value)
    lines = (tmp_path / FILE).read_text().splitlines()
    assert len(lines) == 1 + 2, "the job, and the default at two loads"
    assert analysis.run(better), "the next run starts anew"
    assert analysis.ranked()[0].is_better


def test_only_the_default_has_no_comparison(tmp_path: Path) -> None:
    options = msgspec.structs.replace(
        OPTIONS, run_config_search_disable=True, run_config_search_mode="brute"
    )
    trials = Analysis(tmp_path, options).run(better)
    assert not any(one.stage == "comparison" for one in trials)
