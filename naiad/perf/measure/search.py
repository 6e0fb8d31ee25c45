"""Which levels are measured: all of a range, or a binary search for the last one within the latency
threshold.

Rule: decides from results only, so the same code serves concurrency and rates. A level that was
      given up ends the search.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from naiad.perf.load.level import Level
from naiad.perf.measure.measure import LevelResult
from naiad.perf.measure.ranges import Range

MeasureLevel = Callable[[float], Awaitable[LevelResult]]
IsWithin = Callable[[LevelResult], bool]


def within_threshold(threshold_ms: float, percentile: int) -> IsWithin:
    """True without a threshold."""

    def is_within(result: LevelResult) -> bool:
        if result.summary is None or result.error:
            return False
        return not threshold_ms or result.summary.latency_us(percentile) <= threshold_ms * 1000

    return is_within


async def linear(
    found: Range, measure: MeasureLevel, is_within: IsWithin
) -> AsyncIterator[LevelResult]:
    value = found.start
    while found.end == 0 or value <= found.end + 1e-9:
        result = await measure(value)
        yield result
        if result.error or not is_within(result):
            return
        value += found.step


async def binary(
    found: Range, measure: MeasureLevel, is_within: IsWithin
) -> AsyncIterator[LevelResult]:
    """Both ends first, then the middle of what is left, until that is no wider than the step."""
    low, high = found.start, found.end
    for value in dict.fromkeys((low, high)):
        result = await measure(value)
        yield result
        if result.error or (value == low and not is_within(result)):
            return
    if is_within(result):
        return
    while high - low > found.step:
        middle = low + max(found.step, round((high - low) / 2 / found.step) * found.step)
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
