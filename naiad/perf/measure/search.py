"""Chooses the levels to measure: all levels of a range, or a binary search for the highest level
within the latency threshold.

Rule: the choice depends only on results, so that it works for concurrency and request rates. A
      level with an error ends the search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from naiad.perf.load.level import Level
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.ranges import Range

MeasureLevel = Callable[[float], Awaitable[LevelResult]]
IsWithin = Callable[[LevelResult], bool]


def within_threshold(threshold_ms: float, percentile: int) -> IsWithin:
    """Returns a function that compares a result with the threshold. Without a threshold every
    result is within it."""

    def is_within(result: LevelResult) -> bool:
        if result.summary is None or result.error:
            return False
        return not threshold_ms or result.summary.latency_us(percentile) <= threshold_ms * 1000

    return is_within


async def linear(
    values: Range, measure: MeasureLevel, is_within: IsWithin
) -> AsyncIterator[LevelResult]:
    value = values.start
    while values.end == 0 or value <= values.end + 1e-9:
        result = await measure(value)
        yield result
        if result.error or not is_within(result):
            return
        value += values.step


async def binary(
    values: Range, measure: MeasureLevel, is_within: IsWithin
) -> AsyncIterator[LevelResult]:
    """Measures both ends, then bisects the range until it is no wider than the step."""
    low, high = values.start, values.end
    for value in dict.fromkeys((low, high)):
        result = await measure(value)
        yield result
        if result.error or (value == low and not is_within(result)):
            return
    if is_within(result):
        return
    while high - low > values.step:
        middle = low + max(values.step, round((high - low) / 2 / values.step) * values.step)
        if middle >= high:
            return
        result = await measure(middle)
        yield result
        if result.error:
            return
        if is_within(result):
            low = middle
        else:
            high = middle


def by_value(results: list[LevelResult]) -> list[LevelResult]:
    return sorted(results, key=lambda result: result.level.value)


def level_maker(pattern: Level) -> Callable[[float], Level]:
    return lambda value: Level(pattern.mode, value, pattern.distribution, pattern.times)
