"""Runs the three stages of an analysis of one workload.

1. The search measures configurations, each under the loads that the search chooses.
2. The sweep measures the best configurations and the default at concurrencies from 1 to 512.
3. The comparison measures the best configurations and the default in turns, at equal loads. Gains
   come from this stage alone, because a search measures different configurations under different
   loads and at different times.

Rule: each stage chooses its trials from earlier results only, so that a resumed run makes the same
      choices and measures nothing twice. Only an interrupted round is repeated, since its
      measurements must follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naiad.analyze.brute import Search
from naiad.analyze.checkpoint import Checkpoint, CheckpointJob, job_key
from naiad.analyze.measurement import Load, Measurement, load_text
from naiad.analyze.progress import SearchProgress
from naiad.analyze.ranking import Ranked, rank
from naiad.analyze.scoring import exceeds_latency, trial_score
from naiad.analyze.settings import ProfileOptions
from naiad.analyze.space import Point, Space, SpaceTrial, powers

MAX_SWEEP_CONCURRENCY = 512
_COMMON_CONCURRENCY = 16
"""A moderate load, at which every comparison is made as well."""

_DATA_HINT = (
    "If the model needs other input data than random numbers, provide it with"
    ' --perf-analyzer-flags \'{"input-data": "data.json"}\', for strings'
    ' \'{"string-data": "some words"}\' or, for shapes, \'{"shape": ["INPUT:3,224,224"]}\'.'
    " `naiad perf -m MODEL --input-data data.json` tries the data on a running server."
)


class UnusableModelError(Exception):
    """The default configuration fails under every load, so a search would only repeat that."""


class TrialBench(Protocol):
    def key(self, trial: SpaceTrial) -> str: ...

    def describe(self, trial: SpaceTrial) -> str: ...

    async def measure(self, trial: SpaceTrial) -> Measurement: ...


class Study:
    def __init__(
        self,
        options: ProfileOptions,
        space: Space,
        bench: TrialBench,
        job: CheckpointJob,
        checkpoint: Checkpoint,
        progress: SearchProgress,
        *,
        has_fixed_load: bool = False,
    ) -> None:
        """`has_fixed_load` is True if the load is a request rate, so that the concurrency has no
        effect."""
        self._options = options
        self._space = space
        self._bench = bench
        self._job = job
        self._checkpoint = checkpoint
        self._progress = progress
        self._has_fixed_load = has_fixed_load
        self._measurements: list[Measurement] = []
        """Measurements of the search and the sweep that this run asked for."""
        self._points: dict[str, Point] = {}
        """Points by the name of the configuration."""

    async def run(self, search: Search) -> None:
        """Runs all stages. Raises UnusableModelError if the default configuration never runs."""
        base = await self._measure_default()
        try:
            trial = next(search)
            while True:
                measurement = await self._measure(trial)
                trial = search.send(trial_score(measurement, base, self._job.goal))
        except StopIteration:
            pass
        await self._sweep()
        await self._compare()

    async def _measure_default(self) -> Measurement:
        """Measures the default configuration, to which scores are relative."""
        space = self._space
        concurrencies = (
            space.concurrencies
            if space.has_fixed_concurrencies
            else (1, min(_COMMON_CONCURRENCY, space.max_concurrency))
        )
        best: Measurement | None = None
        for concurrency in dict.fromkeys(concurrencies):
            measurement = await self._measure(SpaceTrial((), concurrency, space.batch_sizes[0]))
            if measurement.error:
                continue
            rate = measurement.figure("perf_throughput") or 0
            if best is None or rate > (best.figure("perf_throughput") or 0):
                best = measurement
        if best is None:
            raise UnusableModelError(
                "the configuration that the model came with fails under every load, so no other"
                f" configuration was tried: {self._measurements[0].error}\n{_DATA_HINT}"
            )
        return best

    async def _sweep(self) -> None:
        if self._options.concurrency_sweep_disable or self._has_fixed_load:
            return
        candidates, default = self._best()
        concurrencies = sweep_concurrencies(self._space)
        self._progress.stage(
            f"Sweep: the best configurations at concurrencies {concurrencies[0]} to"
            f" {concurrencies[-1]}"
        )
        for entry in [*candidates, *default]:
            for concurrency in concurrencies:
                trial = SpaceTrial(
                    self._points[entry.name], concurrency, entry.best.batch_size, "sweep"
                )
                measurement = await self._measure(trial)
                if measurement.error or exceeds_latency(measurement, self._job.goal):
                    break

    async def _compare(self) -> None:
        candidates, default = self._best()
        if not candidates or not default:
            return
        # The default comes first, so that its failure at a load is known before the others run.
        points = [self._points[entry.name] for entry in (*default, *candidates)]
        loads = self._comparison_loads(candidates, default)
        num_rounds = self._options.comparison_rounds
        self._progress.stage(
            f"Comparison: {len(candidates)} configurations and the default in turns,"
            f" {num_rounds} rounds at {', '.join(load_text(load) for load in loads)}"
        )
        failed: set[tuple[Point, Load]] = set()
        for number in range(1, num_rounds + 1):
            trials = [
                SpaceTrial(point, load[0], load[1], "comparison", number)
                for point in points
                for load in loads
                if not failed & {(point, load), (points[0], load)}
            ]
            is_done = all(self._known(trial) is not None for trial in trials)
            for trial in trials:
                measurement = self._known(trial) if is_done else await self._measure_anew(trial)
                if measurement is not None and measurement.error:
                    failed.add((trial.point, measurement.load))

    def _comparison_loads(
        self, candidates: Sequence[Ranked], default: Sequence[Ranked]
    ) -> list[Load]:
        """Returns the loads at which the best candidate and the default were best, and a moderate
        load."""
        loads = [candidates[0].best.load, default[0].best.load]
        if not self._space.has_fixed_concurrencies and not self._has_fixed_load:
            common = min(_COMMON_CONCURRENCY, self._space.max_concurrency)
            loads.append((common, candidates[0].best.batch_size))
        return sorted(set(loads))

    def _best(self) -> tuple[list[Ranked], list[Ranked]]:
        """Returns the best configurations, and the default."""
        ranked = rank(self._measurements, self._job.goal)
        candidates = [entry for entry in ranked if not entry.best.is_default]
        default = [entry for entry in ranked if entry.best.is_default]
        return candidates[: self._options.num_configs_per_model], default

    def _known(self, trial: SpaceTrial) -> Measurement | None:
        known = self._checkpoint.history.measurements[job_key(self._job.models)]
        return known.get(self._bench.key(trial))

    async def _measure(self, trial: SpaceTrial) -> Measurement:
        measurement = self._known(trial) or await self._measure_anew(trial)
        self._points.setdefault(measurement.name, trial.point)
        self._measurements.append(measurement)
        return measurement

    async def _measure_anew(self, trial: SpaceTrial) -> Measurement:
        self._progress.begin(self._bench.describe(trial))
        measurement = await self._bench.measure(trial)
        self._checkpoint.add(self._job, measurement)
        self._progress.done(measurement)
        return measurement


def sweep_concurrencies(space: Space) -> Sequence[int]:
    """Returns the powers of two up to 512 that the options allow, or the user's concurrencies."""
    if space.has_fixed_concurrencies:
        return space.concurrencies
    high = max(space.min_concurrency, min(MAX_SWEEP_CONCURRENCY, space.max_concurrency))
    return powers(space.min_concurrency, high)
