"""Quick search: climbs from a cheap configuration to the best one, one dimension at a time, then
tries other loads for the best points.

Each point is measured once, under its formula concurrency. The search tries all unmeasured
neighbours of the best point so far. It repeats a step that helps in the same direction with twice
the length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from naiad.analyze.brute import Search
from naiad.analyze.space import Point, Space, SpaceTrial

_GAIN = 0.01
"""Scores that differ by less than this count as equal, since measurements are not more exact."""
_NUM_SWEPT = 3
"""Number of best points for which other concurrencies are tried."""
_NEAR = 0.1
"""A point whose score is within this share of the best score may win under another load."""


def quick_search(space: Space, *, has_sweep: bool = True) -> Search:
    scores: dict[Point, float | None] = {}
    yield from _climb(space, space.batch_sizes[0], scores)
    yield from refine(space, scores, space.batch_sizes[0], has_sweep=has_sweep)


def refine(
    space: Space, scores: dict[Point, float | None], batch_size: int, *, has_sweep: bool
) -> Search:
    """Tries other loads for the best points, and other batch sizes of requests for the best one."""
    known = {point: score for point, score in scores.items() if score is not None}
    if not known:
        return
    ranked = sorted(known, key=lambda point: -known[point])
    best = ranked[0]
    for point in ranked[: _NUM_SWEPT if has_sweep else 0]:
        if known[point] < known[best] - _NEAR * (1 + abs(known[best])):
            break
        yield from _sweep(space, point, batch_size, known[point])
    for other in space.batch_sizes:
        if other != batch_size:
            yield SpaceTrial(best, space.formula_concurrency(best), other)


def _climb(
    space: Space, batch_size: int, scores: dict[Point, float | None]
) -> Generator[SpaceTrial, float | None, Point]:
    def measured(point: Point) -> Generator[SpaceTrial, float | None, float]:
        if point not in scores:
            scores[point] = yield SpaceTrial(point, space.formula_concurrency(point), batch_size)
        score = scores[point]
        return float("-inf") if score is None else score

    best = _start(space)
    best_score = yield from measured(best)
    while True:
        start, start_score = best, best_score
        for axis in range(len(space.dimensions)):
            for direction in (1, -1):
                best, best_score, has_moved = yield from _walk(
                    space, measured, best, best_score, axis, direction
                )
                if has_moved:
                    break
        if best == start or best_score <= start_score + _GAIN:
            return best


def _walk(
    space: Space,
    measured: Callable[[Point], Generator[SpaceTrial, float | None, float]],
    best: Point,
    best_score: float,
    axis: int,
    direction: int,
) -> Generator[SpaceTrial, float | None, tuple[Point, float, bool]]:
    """Moves along one axis while the score improves.

    The steps double. After a long step that does not help, single steps try the points that it
    skipped.
    """
    stride, has_moved = 1, False
    while True:
        point = _moved(space, best, axis, direction * stride)
        if point == best:
            return best, best_score, has_moved
        score = yield from measured(point)
        if score > best_score + _GAIN * max(1.0, abs(best_score)):
            best, best_score, has_moved = point, score, True
            stride *= 2
        elif stride > 1:
            stride = 1
        else:
            return best, best_score, has_moved


def _start(space: Space) -> Point:
    """Returns a point at a third of each dimension: larger batches and more instances help most
    models, but too many hurt some."""
    return tuple(len(dimension.values) // 3 for dimension in space.dimensions)


def _moved(space: Space, point: Point, axis: int, steps: int) -> Point:
    last = len(space.dimensions[axis].values) - 1
    index = min(last, max(0, point[axis] + steps))
    return (*point[:axis], index, *point[axis + 1 :])


def _sweep(space: Space, point: Point, batch_size: int, score: float) -> Search:
    """Tries higher and then lower concurrencies, each until the score stops improving."""
    first = space.formula_concurrency(point)
    for step in (2.0, 0.5):
        concurrency, best = first, score
        while True:
            concurrency = _next_concurrency(space, concurrency, step)
            if concurrency < 0:
                break
            trial_score = yield SpaceTrial(point, concurrency, batch_size)
            if trial_score is None or trial_score <= best + _GAIN:
                break
            best = trial_score


def _next_concurrency(space: Space, concurrency: int, step: float) -> int:
    """Returns the next concurrency in the direction of `step`, or -1 if there is none."""
    if space.has_fixed_concurrencies:
        others = [
            value
            for value in space.concurrencies
            if (value > concurrency) == (step > 1) and value != concurrency
        ]
        return min(others, key=lambda value: abs(value - concurrency)) if others else -1
    scaled = int(concurrency * step)
    is_allowed = space.min_concurrency <= scaled <= space.max_concurrency
    return scaled if is_allowed and scaled != concurrency else -1
