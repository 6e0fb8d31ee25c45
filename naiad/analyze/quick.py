"""Quick search: climbs from a cheap configuration towards the best one, one dimension at a time,
then tries loads around the summit.

Each point is measured once, under the concurrency that its batch size and instances call for. From
the best point so far all unmeasured neighbours are tried; a step that helps is repeated in the same
direction with twice the length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from naiad.analyze.brute import Search
from naiad.analyze.space import Point, Space, Trial

_GAIN = 0.01
"""Scores closer than this are the same: measurements are not more exact."""
_NUM_SWEPT = 3
_NEAR = 0.1
"""A point whose score is within this share of the best may win under another load."""


def quick_search(space: Space, *, has_sweep: bool = True) -> Search:
    scores: dict[Point, float | None] = {}
    yield from _climb(space, space.batch_sizes[0], scores)
    yield from refine(space, scores, space.batch_sizes[0], has_sweep=has_sweep)


def refine(
    space: Space, scores: dict[Point, float | None], batch_size: int, *, has_sweep: bool
) -> Search:
    """Around the best points: other loads, and the other batch sizes of requests."""
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
            yield Trial(best, space.formula_concurrency(best), other)


def _climb(
    space: Space, batch_size: int, scores: dict[Point, float | None]
) -> Generator[Trial, float | None, Point]:
    def measured(point: Point) -> Generator[Trial, float | None, float]:
        if point not in scores:
            scores[point] = yield Trial(point, space.formula_concurrency(point), batch_size)
        found = scores[point]
        return float("-inf") if found is None else found

    here = _start(space)
    height = yield from measured(here)
    while True:
        start, start_height = here, height
        for axis in range(len(space.dimensions)):
            for direction in (1, -1):
                here, height, has_moved = yield from _walk(
                    space, measured, here, height, axis, direction
                )
                if has_moved:
                    break
        if here == start or height <= start_height + _GAIN:
            return here


def _walk(
    space: Space,
    measured: Callable[[Point], Generator[Trial, float | None, float]],
    here: Point,
    height: float,
    axis: int,
    direction: int,
) -> Generator[Trial, float | None, tuple[Point, float, bool]]:
    """As far as it helps, with steps that double; then back over what a long step may have
    jumped."""
    stride, has_moved = 1, False
    while True:
        there = _moved(space, here, axis, direction * stride)
        if there == here:
            return here, height, has_moved
        found = yield from measured(there)
        if found > height + _GAIN * max(1.0, abs(height)):
            here, height, has_moved = there, found, True
            stride *= 2
        elif stride > 1:
            stride = 1
        else:
            return here, height, has_moved


def _start(space: Space) -> Point:
    """In the lower middle: batches and instances help most models, too many hurt some."""
    return tuple(len(dimension.values) // 3 for dimension in space.dimensions)


def _moved(space: Space, point: Point, axis: int, steps: int) -> Point:
    last = len(space.dimensions[axis].values) - 1
    index = min(last, max(0, point[axis] + steps))
    return (*point[:axis], index, *point[axis + 1 :])


def _sweep(space: Space, point: Point, batch_size: int, score: float) -> Search:
    """Higher and lower concurrencies, each way until it stops helping."""
    first = space.formula_concurrency(point)
    for step in (2.0, 0.5):
        concurrency, best = first, score
        while True:
            concurrency = _next_concurrency(space, concurrency, step)
            if concurrency < 0:
                break
            found = yield Trial(point, concurrency, batch_size)
            if found is None or found <= best + _GAIN:
                break
            best = found


def _next_concurrency(space: Space, concurrency: int, step: float) -> int:
    """-1 when there is none."""
    if space.has_given_concurrencies:
        others = [
            value
            for value in space.concurrencies
            if (value > concurrency) == (step > 1) and value != concurrency
        ]
        return min(others, key=lambda value: abs(value - concurrency)) if others else -1
    wanted = int(concurrency * step)
    return (
        wanted
        if space.min_concurrency <= wanted <= space.max_concurrency and wanted != concurrency
        else -1
    )
