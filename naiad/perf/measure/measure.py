"""Measures one level of load, window by window, until three windows agree.

In:  a LoadDriver and a Level.
Out: a LevelResult: the summary of the last windows, and whether they are stable.
Rule: if the server dies, rejects all requests or hangs, the level ends with an error. Earlier
      windows are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol

import msgspec

from naiad.perf.channels.call import ConnectError
from naiad.perf.load.driver import LoadDriver
from naiad.perf.load.level import Level, Mode
from naiad.perf.measure.gpu_readings import MetricsPoller
from naiad.perf.measure.recorder import Records
from naiad.perf.measure.server_statistics import Snapshot, StatisticsReader
from naiad.perf.measure.stability import NUM_WINDOWS, Point, Verdict, judge
from naiad.perf.measure.window import (
    Summary,
    Window,
    WindowPlan,
    latencies_us,
    nearest_rank,
    summarize,
)

_PROGRESS_S = 0.2
_POLL_S = 0.01
_COMPLETE_LIMIT_S = 3600.0
_HANG_S = 10.0
"""Minimum time without a response after which a server hangs. A busy machine may not respond during
a short window."""


class Pace(msgspec.Struct, frozen=True):
    """The length and the maximum number of windows."""

    interval_s: float = 5.0
    window_requests: int = 0
    """With count_windows, the number of requests that ends a window; 0 for windows of time."""
    total_requests: int = 0
    """Total number of requests to send in a single window; 0 for a series of windows."""
    warmup_requests: int = 0
    stability_percent: float = 10.0
    max_trials: int = 10
    hang_s: float = _HANG_S

    @property
    def hang_limit_s(self) -> float:
        """A server that does not respond for this long hangs."""
        return max(NUM_WINDOWS * self.interval_s, self.hang_s)


class LevelResult(msgspec.Struct):
    level: Level
    summary: Summary | None
    verdict: Verdict
    windows: list[Window]
    """All windows, including those before the level was stable."""
    error: str = ""
    """The reason why the measurement was aborted; the summary may have figures up to that point."""


class Watcher(Protocol):
    """Shows the progress of a measurement to the user."""

    def begin(self, level: Level) -> None: ...

    def progress(
        self, level: Level, trial: int, max_trials: int, fraction: float, num_ended: int
    ) -> None: ...

    def window(self, level: Level, trial: int, point: Point) -> None: ...

    def end(self, result: LevelResult) -> None: ...


class Measurer:
    def __init__(
        self,
        driver: LoadDriver,
        plan: WindowPlan,
        pace: Pace,
        watcher: Watcher,
        statistics: StatisticsReader | None = None,
        poller: MetricsPoller | None = None,
    ) -> None:
        self._driver = driver
        self._plan = plan
        self._pace = pace
        self._watcher = watcher
        self._statistics = statistics
        self._poller = poller
        self._trial = 0

    async def measure(self, level: Level) -> LevelResult:
        self._watcher.begin(level)
        self._trial = 0
        windows: list[Window] = []
        try:
            result = await self._measure(level, windows)
        except ConnectError as error:
            result = self._result(level, windows, Verdict(False, "not measured"), str(error))
        self._watcher.end(result)
        return result

    async def _measure(self, level: Level, windows: list[Window]) -> LevelResult:
        is_single = bool(self._pace.total_requests) or level.mode in (Mode.REPLAY, Mode.PERIODIC)
        if self._pace.warmup_requests:
            await self._driver.set_level(level)
            await self._wait_ended(level, self._pace.warmup_requests)
        before = await self._read_statistics()
        if is_single:
            await self._driver.collect()
            start_ns = time.monotonic_ns()
            await self._driver.set_level(level, self._pace.total_requests or -1)
            await self._wait_complete(level)
            windows.append(await self._close_window(start_ns, before))
            return self._result(
                level,
                windows,
                Verdict(True, "stability is not checked for a fixed number of requests"),
                self._abort_reason(windows),
            )
        await self._driver.set_level(level)
        await self._driver.collect()
        return await self._measure_windows(level, windows, before)

    async def _measure_windows(
        self, level: Level, windows: list[Window], before: Snapshot | None
    ) -> LevelResult:
        verdict = Verdict(False, "no window was finished")
        points: list[Point] = []
        start_ns = time.monotonic_ns()
        while len(windows) < self._pace.max_trials:
            self._trial = len(windows) + 1
            await self._wait_window(level)
            window = await self._close_window(start_ns, before)
            if self._statistics is not None:
                before = self._last_statistics
            start_ns = window.end_ns
            windows.append(window)
            points.append(self._point(window))
            self._watcher.window(level, self._trial, points[-1])
            error = self._abort_reason(windows)
            if error:
                return self._result(level, windows, verdict, error)
            rate = level.value * self._plan.batch_size if level.mode is Mode.REQUEST_RATE else 0.0
            verdict = judge(points, self._pace.stability_percent, self._latency_name, rate)
            if verdict.is_stable:
                break
        return self._result(level, windows, verdict, "")

    # Waiting.

    async def _wait_window(self, level: Level) -> None:
        if self._pace.window_requests:
            await self._wait_ended(level, self._pace.window_requests)
            return
        first = (await self._driver.status()).num_ended
        end = time.monotonic() + self._pace.interval_s
        while (left_s := end - time.monotonic()) > 0 and not self._driver.broken.is_set():
            await self._rest(min(_PROGRESS_S, left_s))
            await self._report_progress(
                level, 1 - max(0.0, end - time.monotonic()) / self._pace.interval_s
            )
        await self._wait_first(first, end + self._pace.hang_limit_s - self._pace.interval_s)

    async def _wait_first(self, first: int, limit: float) -> None:
        """Extends a window without a response until the first response arrives."""
        while (
            (await self._driver.status()).num_ended == first
            and time.monotonic() < limit
            and not self._driver.broken.is_set()
        ):
            await self._rest(_POLL_S)

    async def _wait_ended(self, level: Level, count: int) -> None:
        first = (await self._driver.status()).num_ended
        limit = time.monotonic() + _COMPLETE_LIMIT_S
        while not self._driver.broken.is_set() and time.monotonic() < limit:
            status = await self._driver.status()
            if status.num_ended - first >= count:
                return
            await self._report_progress(level, (status.num_ended - first) / count)
            await self._rest(_POLL_S)

    async def _wait_complete(self, level: Level) -> None:
        """Waits until all requests are sent and have a response."""
        total = self._pace.total_requests or len(level.times) or 1
        first = (await self._driver.status()).num_ended
        while not self._driver.broken.is_set():
            status = await self._driver.status()
            if status.is_exhausted and not status.num_in_flight and not status.num_queued:
                return
            await self._report_progress(level, min(1.0, (status.num_ended - first) / total))
            await self._rest(_POLL_S)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._driver.broken.wait()

    async def _report_progress(self, level: Level, fraction: float) -> None:
        status = await self._driver.status()
        self._watcher.progress(
            level, max(1, self._trial), self._pace.max_trials, fraction, status.num_ended
        )

    # Windows.

    async def _read_statistics(self) -> Snapshot | None:
        self._last_statistics = (
            await self._statistics.read() if self._statistics is not None else None
        )
        return self._last_statistics

    async def _close_window(self, start_ns: int, before: Snapshot | None) -> Window:
        records = await self._driver.collect()
        end_ns = time.monotonic_ns()
        # Whoever answers no request does not tell its statistics either.
        after = await self._read_statistics() if len(records) else None
        server = self._statistics.delta(before, after) if self._statistics is not None else None
        return Window(
            start_ns,
            end_ns,
            records,
            server,
            self._poller.collect() if self._poller is not None else None,
        )

    def _point(self, window: Window) -> Point:
        latency = latencies_us(window.records, self._plan)
        latency.sort()
        figure = float(latency.mean()) if len(latency) else 0.0
        if self._plan.percentile > 0:
            figure = nearest_rank(latency, self._plan.percentile)
        return Point(
            len(window.records) * self._plan.batch_size / window.duration_s,
            figure,
            len(window.records.failures),
        )

    @property
    def _latency_name(self) -> str:
        return (
            "average latency" if self._plan.percentile < 0 else f"p{self._plan.percentile} latency"
        )

    def _abort_reason(self, windows: list[Window]) -> str:
        """Returns why the measurement must stop; empty if it can continue."""
        records = windows[-1].records
        if self._driver.broken.is_set():
            return f"the server is gone: {_last_failure(records) or 'no connection'}"
        if not len(records) and records.failures:
            count = len(records.failures)
            advice = f"; {self._plan.data_advice}" if self._plan.data_advice else ""
            return f"all {count} requests of a window failed: {_last_failure(records)}{advice}"
        if (
            not len(records)
            and windows[-1].duration_s >= self._pace.hang_limit_s
            and not self._pace.total_requests
        ):
            return (
                f"no response within {windows[-1].duration_s:.1f} s: the server hangs, or a"
                " response takes longer (increase --measurement-interval)"
            )
        return ""

    def _result(
        self, level: Level, windows: list[Window], verdict: Verdict, error: str
    ) -> LevelResult:
        """Summarizes the last three windows, like perf_analyzer."""
        # A window in which the server was silent says nothing about the time before.
        measured = [window for window in windows if len(window.records)] if error else []
        counted = (measured or windows)[-NUM_WINDOWS:]
        has_any = any(len(window.records) or window.records.failures for window in counted)
        return LevelResult(
            level, summarize(counted, self._plan) if has_any else None, verdict, windows, error
        )


def _last_failure(records: Records) -> str:
    return records.failures[-1].message if records.failures else ""
