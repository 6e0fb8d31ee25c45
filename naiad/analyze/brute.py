"""Brute force: every point under every load. The yardstick of the other searches."""

from __future__ import annotations

from collections.abc import Generator

from naiad.analyze.space import Space, Trial

Search = Generator[Trial, float | None, None]
"""Yields what to measure next and is sent its score; None for a measurement that failed."""

_SAME = 0.05
_PATIENCE = 3


def brute_search(space: Space, *, is_early_exit: bool) -> Search:
    for point in space.points():
        for batch_size in space.batch_sizes:
            scores: list[float] = []
            for concurrency in space.concurrencies:
                score = yield Trial(point, concurrency, batch_size)
                if score is None:
                    break
                scores.append(score)
                if is_early_exit and _is_flat(scores):
                    break


def _is_flat(scores: list[float]) -> bool:
    """The last few were no better than the best before them."""
    return len(scores) > _PATIENCE and max(scores[-_PATIENCE:]) <= max(scores[:-_PATIENCE]) + _SAME
