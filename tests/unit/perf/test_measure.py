"""Tests windows, stability and searches with made-up records and a scripted driver."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from naiad.perf.channels.call import ConnectError
from naiad.perf.load.driver import DriverStatus
from naiad.perf.load.level import Level, Mode
from naiad.perf.measure.measure import LevelResult, Measurer, Pace
from naiad.perf.measure.ranges import Range
from naiad.perf.measure.recorder import Detail, Failure, Records
from naiad.perf.measure.search import binary, linear, within_threshold
from naiad.perf.measure.server_statistics import (
    Counters,
    ModelDelta,
    StatisticsReader,
    merge_deltas,
)
from naiad.perf.measure.stability import Point, Verdict, judge
from naiad.perf.measure.window import Window, WindowPlan, nearest_rank, summarize
from tests.unit.perf.facts import add_sub

US = 1000


def records(
    latencies_us: list[float],
    failures: list[str] | None = None,
    details: list[Detail] | None = None,
) -> Records:
    count = len(latencies_us)
    numbers = np.zeros((8, count), np.int64)
    numbers[0] = 1_000_000
    numbers[1] = numbers[6] = [1_000_000 + round(value * US) for value in latencies_us]
    numbers[5] = 1
    numbers[7] = -1
    return Records(numbers, details or [], [Failure(0, message) for message in failures or []])


def window(
    latencies_us: list[float], seconds: float = 1.0, failures: list[str] | None = None
) -> Window:
    return Window(0, round(seconds * 1e9), records(latencies_us, failures))


def test_summary_of_windows() -> None:
    summary = summarize(
        [window([100, 200]), window([300, 400], failures=["a", "b", "a"])],
        WindowPlan(batch_size=2, percentile=80),
    )
    assert summary.num_requests == 4
    assert summary.infer_per_s == 4.0
    assert summary.average_us == 250
    assert summary.percentiles_us == {50: 300, 80: 300, 90: 400, 95: 400, 99: 400}
    assert summary.failures == {"a": 2, "b": 1}
    assert summary.send_per_s == 3.5


def test_percentiles_are_samples() -> None:
    assert nearest_rank(np.array([1.0, 2.0, 3.0]), 50) == 2.0
    assert nearest_rank(np.array([]), 99) == 0.0


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(rate, latency) for rate, latency in pairs]


def test_three_windows_that_agree_are_stable() -> None:
    verdict = judge(points((1, 900), (100, 50), (105, 52), (101, 51)), 10, "average latency")
    assert verdict == Verdict(
        True,
        "over the last 3 windows, throughput differs by 5.0% and average latency by 4.0%"
        " (limit 10%)",
    )
    assert not judge(points((100, 50), (100, 50)), 10, "x").is_stable


@pytest.mark.parametrize(
    ("windows", "rate", "message"),
    [
        (points((100, 50), (100, 70), (100, 90)), 0, "latency rises"),
        (points((100, 90), (100, 70), (100, 50)), 0, "warming up"),
        (points((100, 50), (100, 90), (100, 50)), 0, "the figures fluctuate"),
        (points((50, 50), (60, 70), (60, 90)), 100, "completes 60 of 100"),
        ([Point(100, 50, 3), Point(100, 90), Point(100, 50)], 0, "some requests failed"),
        (points((100, 50), (0, 0), (100, 50)), 0, "no request finished"),
    ],
)
def test_explains_why_windows_are_not_stable(
    windows: list[Point], rate: float, message: str
) -> None:
    verdict = judge(windows, 10, "average latency", rate)
    assert not verdict.is_stable
    assert message in verdict.explanation


# Measuring.


class ScriptedDriver:
    """Each call of `collect` returns the next records of the script."""

    def __init__(self, script: list[Records], *, refuses: bool = False) -> None:
        self.broken = asyncio.Event()
        self.levels: list[tuple[float, int]] = []
        self._script = [records([]), *script]
        self._num_ended = 0
        self._refuses = refuses

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        if self._refuses:
            raise ConnectError("cannot connect to localhost:1: Connection refused")
        self.levels.append((level.value, num_requests))

    async def collect(self) -> Records:
        return self._script.pop(0)

    async def status(self) -> DriverStatus:
        """Counts another request as ended, unless the next records are empty."""
        self._num_ended += bool(len(self._script[0]) or self._script[0].failures)
        return DriverStatus(0, 0, self._num_ended, 0, True)

    async def stop(self, limit_s: float = 30.0) -> None: ...


class Watch:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, level: Level) -> None:
        self.seen.append("begin")

    def progress(
        self, level: Level, trial: int, max_trials: int, fraction: float, num_ended: int
    ) -> None: ...

    def window(self, level: Level, trial: int, point: Point) -> None:
        self.seen.append(f"window {trial}")

    def end(self, result: LevelResult) -> None:
        self.seen.append("end")


LEVEL = Level(Mode.CONCURRENCY, 2)
PACE = Pace(interval_s=0.001, max_trials=5, stability_percent=1000)


async def measure(
    script: list[Records], pace: Pace = PACE, **options: bool
) -> tuple[LevelResult, ScriptedDriver, Watch]:
    driver, watch = ScriptedDriver(script, **options), Watch()
    return await Measurer(driver, WindowPlan(), pace, watch).measure(LEVEL), driver, watch


async def test_a_level_ends_when_it_is_stable() -> None:
    result, driver, watch = await measure([records([100.0] * 5)] * 3)
    assert result.verdict.is_stable
    assert result.summary is not None
    assert result.summary.num_requests == 15
    assert driver.levels == [(2, -1)]
    assert watch.seen == ["begin", "window 1", "window 2", "window 3", "end"]


async def test_an_unstable_level_reports_its_last_windows() -> None:
    pace = Pace(interval_s=0.001, max_trials=4, stability_percent=10)
    result, _, _ = await measure(
        [records([latency]) for latency in (1.0, 100.0, 300.0, 900.0)], pace
    )
    assert not result.verdict.is_stable
    assert not result.error
    assert result.summary is not None
    assert result.summary.num_requests == 3
    assert len(result.windows) == 4


async def test_a_window_of_failures_says_what_to_try_with_data_that_is_made_up() -> None:
    driver = ScriptedDriver([records([], ["HTTP 500: no"])])
    plan = WindowPlan(data_advice="try --string-data TEXT")
    result = await Measurer(driver, plan, PACE, Watch()).measure(LEVEL)
    assert result.error.endswith("failed: HTTP 500: no; try --string-data TEXT")


async def test_a_window_of_failures_ends_the_level() -> None:
    result, _, _ = await measure([records([10.0]), records([], ["HTTP 500: no", "HTTP 500: no"])])
    assert result.error == "all 2 requests of a window failed: HTTP 500: no"
    assert result.summary is not None
    assert result.summary.num_requests == 1


async def test_a_server_that_hangs_ends_the_level() -> None:
    result, _, watch = await measure([records([])], Pace(interval_s=0.001, hang_s=0.01))
    assert "no response within" in result.error
    assert result.summary is None
    assert watch.seen == ["begin", "window 1", "end"]


async def test_silence_before_giving_up_is_not_in_the_figures() -> None:
    result, _, _ = await measure(
        [records([10.0]), records([])], Pace(interval_s=0.001, hang_s=0.01)
    )
    assert "no response within" in result.error
    assert result.summary == summarize(result.windows[:1], WindowPlan())


async def test_a_window_lasts_until_the_first_response() -> None:
    driver, watch = ScriptedDriver([records([])] * 3), Watch()
    measuring = asyncio.ensure_future(Measurer(driver, WindowPlan(), PACE, watch).measure(LEVEL))
    asked = 0
    status = driver.status

    async def count() -> DriverStatus:
        nonlocal asked
        asked += 1
        if asked == 20:  # long after the end of the first window
            driver._script[:] = [records([100.0])] * 10
        return await status()

    driver.status = count  # type: ignore[method-assign]
    result = await measuring
    assert not result.error
    assert result.summary is not None
    assert result.summary.num_requests == 3


async def test_a_server_that_is_gone_ends_the_level() -> None:
    driver, watch = ScriptedDriver([records([], ["cannot connect to localhost:1"])]), Watch()
    driver.broken.set()
    result = await Measurer(driver, WindowPlan(), Pace(interval_s=60), watch).measure(LEVEL)
    assert result.error == "the server is gone: cannot connect to localhost:1"


async def test_a_refused_connection_ends_the_level() -> None:
    result, _, watch = await measure([], refuses=True)
    assert "Connection refused" in result.error
    assert watch.seen == ["begin", "end"]


async def test_a_fixed_number_of_requests_is_one_window() -> None:
    result, driver, _ = await measure([records([1.0, 2.0])], Pace(total_requests=2))
    assert driver.levels == [(2, 2)]
    assert result.verdict.is_stable
    assert len(result.windows) == 1


# Searching.


def result_at(value: float, latency_us: float, error: str = "") -> LevelResult:
    summary = summarize([window([latency_us])], WindowPlan())
    return LevelResult(Level(Mode.CONCURRENCY, value), summary, Verdict(True, ""), [], error)


async def values_of(
    walk: object, values: Range, threshold_ms: float, latency_of: object
) -> list[float]:
    async def measured(value: float) -> LevelResult:
        return result_at(value, latency_of(value))  # type: ignore[operator]

    return [
        result.level.value
        async for result in walk(values, measured, within_threshold(threshold_ms, -1))  # type: ignore[operator]
    ]


async def test_linear_search() -> None:
    assert await values_of(linear, Range(1, 7, 3), 0, lambda value: 1) == [1, 4, 7]
    assert await values_of(linear, Range(1, 0, 2, True), 5, lambda value: value * 1000) == [
        1,
        3,
        5,
        7,
    ]


async def test_binary_search_finds_the_last_level_within_the_threshold() -> None:
    visited = await values_of(binary, Range(1, 64, 1), 20.5, lambda value: value * 1000)
    assert visited[:2] == [1, 64]
    assert {20, 21} <= set(visited)
    assert len(visited) < 12
    assert await values_of(binary, Range(1, 64, 1), 100, lambda value: value * 1000) == [1, 64]
    assert await values_of(binary, Range(10, 64, 1), 5, lambda value: value * 1000) == [10]


async def test_an_error_ends_a_search() -> None:
    async def failing(value: float) -> LevelResult:
        return result_at(value, 1, "gone")

    assert (
        len([result async for result in linear(Range(1, 9, 1), failing, within_threshold(0, -1))])
        == 1
    )


# Statistics of the server.


def counters(requests: int, queue_us: float) -> Counters:
    return Counters(
        requests,
        requests,
        {"success": requests},
        {"success": requests * 100 * US, "queue": round(requests * queue_us * US)},
    )


def test_statistics_are_differences() -> None:
    delta = ModelDelta("m", "", counters(30, 20).minus(counters(10, 20)))
    assert delta.counters.inference_count == 20
    assert delta.queue_us == 20
    assert delta.overhead_us == 80
    merged = merge_deltas([delta, delta])
    assert merged is not None
    assert merged.counters.inference_count == 40
    assert merge_deltas([delta, None]) is None


def test_an_ensemble_sums_its_parts() -> None:
    parts = (ModelDelta("a", "", counters(10, 5)), ModelDelta("b", "", counters(10, 7)))
    assert ModelDelta("e", "", counters(10, 0), parts).queue_us == 12


async def test_a_server_without_statistics() -> None:
    import msgspec

    facts = msgspec.structs.replace(add_sub(), has_statistics=False)
    reader = StatisticsReader(None, facts)  # type: ignore[arg-type]
    assert await reader.read() is None
    assert reader.delta(None, None) is None
