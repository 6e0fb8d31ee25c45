"""Optuna's tree-structured Parzen estimator over all dimensions, then the same look around the
summit as quick search.

The default load of each point is its formula's; the number of trials is a share of the space.
Seeded, so a resumed search asks the same.
"""

from __future__ import annotations

import math
from typing import Any

from naiad.analyze.brute import Search
from naiad.analyze.quick import refine
from naiad.analyze.settings import ProfileOptions
from naiad.analyze.space import Point, Space, Trial
from naiad.settings.option import OptionError

_LEAST_TRIALS = 12
_FAILED_SCORE = -1e9


def num_trials(space: Space, options: ProfileOptions) -> int:
    """Between the percentages, at least a dozen where a third of the space allows that."""
    least = options.optuna_min_trials or math.ceil(
        space.size * options.min_percentage_of_search_space / 100
    )
    most = options.optuna_max_trials or math.ceil(
        space.size * options.max_percentage_of_search_space / 100
    )
    wanted = max(least, min(most, max(_LEAST_TRIALS, 4 * len(space.dimensions))))
    return max(
        1,
        min(
            wanted,
            space.num_points if options.optuna_min_trials else max(1, space.size // 4),
            space.num_points,
        ),
    )


def optuna_search(space: Space, options: ProfileOptions) -> Search:
    """Raises OptionError where optuna is missing."""
    study: Any = _study(options.seed)
    batch_size = space.batch_sizes[0]
    scores: dict[Point, float | None] = {}
    best_at = 0
    count = 0
    wanted = num_trials(space, options)
    for point in _first_points(space):
        study.enqueue_trial({str(axis): index for axis, index in enumerate(point)})
    repeats = 0
    while count < wanted and repeats < 20 * wanted:
        trial = study.ask()
        point = tuple(
            trial.suggest_int(str(axis), 0, len(dimension.values) - 1)
            for axis, dimension in enumerate(space.dimensions)
        )
        if point not in scores:
            score = yield Trial(point, space.formula_concurrency(point), batch_size)
            count += 1
            if score is not None and score > max(
                (found for found in scores.values() if found is not None), default=-math.inf
            ):
                best_at = count
            scores[point] = score
            if count - best_at >= options.optuna_early_exit_threshold:
                study.tell(trial, _FAILED_SCORE if score is None else score)
                break
        else:
            repeats += 1
        known = scores[point]
        study.tell(trial, _FAILED_SCORE if known is None else known)
    yield from refine(space, scores, batch_size, has_sweep=not options.concurrency_sweep_disable)


def _first_points(space: Space) -> list[Point]:
    """Corners and the middle: what a person would try first."""
    low = tuple(0 for _ in space.dimensions)
    middle = tuple(len(dimension.values) // 2 for dimension in space.dimensions)
    high = tuple(len(dimension.values) - 1 for dimension in space.dimensions)
    return list(dict.fromkeys((middle, low, high)))


def _study(seed: int) -> Any:
    try:
        import optuna
    except ImportError:
        raise OptionError(
            "the optuna search needs the package 'optuna': pip install naiad[analyze]"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=False, n_startup_trials=5),
    )
