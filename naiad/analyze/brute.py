"""Brute-force search: measures every point under every load."""

from __future__ import annotations

from collections.abc import Generator

from naiad.analyze.space import Space, SpaceTrial

Search = Generator[SpaceTrial, float | None, None]
"""Yields the next trial and receives its score, or None if the measurement failed."""

_SAME = 0.05
"""Scores that differ by no more than this count as equal."""
_PATIENCE = 3
"""Number of consecutive loads without a better score after which a point is flat."""


def brute_search(space: Space, *, is_early_exit: bool) -> Search:
    for point in space.points():
        for batch_size in space.batch_sizes:
            scores: list[float] = []
            for concurrency in space.concurrencies:
                score = yield SpaceTrial(point, concurrency, batch_size)
                if score is None:
                    break
                scores.append(score)
                if is_early_exit and _is_flat(scores):
                    break


def _is_flat(scores: list[float]) -> bool:
    """True if the last scores are no better than the best score before them."""
    return len(scores) > _PATIENCE and max(scores[-_PATIENCE:]) <= max(scores[:-_PATIENCE]) + _SAME
