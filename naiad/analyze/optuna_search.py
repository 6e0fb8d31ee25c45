"""Optuna search: explores all dimensions with a tree-structured Parzen estimator, then refines the
best points like the quick search.

Each point is measured once, under its formula concurrency. The number of trials is a share of the
search space. The estimator is seeded, so that a resumed search repeats the same trials.
"""

from __future__ import annotations

import math
from typing import Any

from naiad.analyze.brute import Search
from naiad.analyze.quick import refine
from naiad.analyze.settings import ProfileOptions
from naiad.analyze.space import Point, Space, SpaceTrial
from naiad.core.install_advice import install_command
from naiad.settings.option import OptionError

_MIN_TRIALS = 12
_FAILED_SCORE = -1e9


def num_trials(space: Space, options: ProfileOptions) -> int:
    """Returns the number of trials, between the minimum and the maximum of the options.

    Unless the user sets a minimum, at most a quarter of the space is measured.
    """
    minimum = options.optuna_min_trials or math.ceil(
        space.size * options.min_percentage_of_search_space / 100
    )
    maximum = options.optuna_max_trials or math.ceil(
        space.size * options.max_percentage_of_search_space / 100
    )
    count = max(minimum, min(maximum, max(_MIN_TRIALS, 4 * len(space.dimensions))))
    if not options.optuna_min_trials:
        count = min(count, max(1, space.size // 4))
    return max(1, min(count, space.num_points))


def optuna_search(space: Space, options: ProfileOptions) -> Search:
    """Raises OptionError if optuna is not installed."""
    study: Any = _study(options.seed)
    batch_size = space.batch_sizes[0]
    scores: dict[Point, float | None] = {}
    best_trial = 0
    count = 0
    max_count = num_trials(space, options)
    for point in _first_points(space):
        study.enqueue_trial({str(axis): index for axis, index in enumerate(point)})
    repeats = 0
    while count < max_count and repeats < 20 * max_count:
        trial = study.ask()
        point = tuple(
            trial.suggest_int(str(axis), 0, len(dimension.values) - 1)
            for axis, dimension in enumerate(space.dimensions)
        )
        if point not in scores:
            score = yield SpaceTrial(point, space.formula_concurrency(point), batch_size)
            count += 1
            best = max((known for known in scores.values() if known is not None), default=-math.inf)
            if score is not None and score > best:
                best_trial = count
            scores[point] = score
            if count - best_trial >= options.optuna_early_exit_threshold:
                study.tell(trial, _FAILED_SCORE if score is None else score)
                break
        else:
            repeats += 1
        known = scores[point]
        study.tell(trial, _FAILED_SCORE if known is None else known)
    yield from refine(space, scores, batch_size, has_sweep=not options.concurrency_sweep_disable)


def _first_points(space: Space) -> list[Point]:
    """Returns the middle and two corners of the space, which give the estimator a start."""
    low = tuple(0 for _ in space.dimensions)
    middle = tuple(len(dimension.values) // 2 for dimension in space.dimensions)
    high = tuple(len(dimension.values) - 1 for dimension in space.dimensions)
    return list(dict.fromkeys((middle, low, high)))


def _study(seed: int) -> Any:
    try:
        import optuna
    except ImportError:
        raise OptionError(
            f"the optuna search needs the package 'optuna': {install_command('analyze')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=False, n_startup_trials=5),
    )
