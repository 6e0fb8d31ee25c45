"""Runs one measurement of `naiad perf`: prepares, measures level after level, and reports.

Rule: finished levels are reported even if the server fails. The exit code is perf_analyzer's: 0 for
      success, 2 if a level was not stable, 99 if the server could not be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from naiad import __version__
from naiad.perf.channels.address import parse_address
from naiad.perf.channels.call import ConnectError
from naiad.perf.channels.control import ControlError
from naiad.perf.load import schedule
from naiad.perf.load.driver import LoadDriver, LocalDriver
from naiad.perf.load.level import Level, Mode
from naiad.perf.load.load import STOP_LIMIT_S
from naiad.perf.load.worker_driver import WorkerDriver
from naiad.perf.measure import search
from naiad.perf.measure.gpu_readings import MetricsPoller
from naiad.perf.measure.measure import LevelResult, Measurer, Pace, Watcher
from naiad.perf.measure.ranges import Range
from naiad.perf.measure.server_statistics import StatisticsReader
from naiad.perf.options import PerfOptions
from naiad.perf.prepare import LoadTarget, prepare_triton
from naiad.perf.prepare_openai import prepare_openai
from naiad.perf.report import text_report
from naiad.perf.report.csv_report import csv_text
from naiad.perf.report.profile_export import write_profile
from naiad.perf.report.progress import LiveLine, PerfProgress, wants_live
from naiad.settings.option import OptionError

NOT_STABLE = 2
UNUSABLE = 99
GIVEN_UP_STOP_S = 2.0
"""Requests in flight get no more time from a server that has not responded for long."""


class RunResult(msgspec.Struct):
    options: PerfOptions
    target: LoadTarget
    levels: list[LevelResult]

    @property
    def exit_code(self) -> int:
        if not self.levels or any(result.error for result in self.levels):
            return UNUSABLE
        return 0 if all(result.verdict.is_stable for result in self.levels) else NOT_STABLE


async def prepare(options: PerfOptions) -> LoadTarget:
    """Prepares a run for the kind of server. Raises OptionError, ControlError, ConnectError."""
    return await (
        prepare_openai(options) if options.service_kind == "openai" else prepare_triton(options)
    )


async def measure_all(
    options: PerfOptions, target: LoadTarget, watcher: Watcher, on_result: Any = None
) -> RunResult:
    """Measures every level of the options. An interrupt cancels only the level in progress."""
    driver = _driver(options, target)
    poller = _poller(options)
    statistics = (
        StatisticsReader(target.control, target.facts) if target.control is not None else None
    )
    measurer = Measurer(driver, target.plan, pace(options), watcher, statistics, poller)
    run = RunResult(options, target, [])
    if poller is not None:
        poller.start()
    try:
        with _disabled_garbage_collector():
            async for result in _levels(options, target, measurer):
                run.levels.append(result)
                if on_result is not None:
                    on_result(result)
    finally:
        if poller is not None:
            await poller.stop()
        has_failed = bool(run.levels) and bool(run.levels[-1].error)
        await driver.stop(GIVEN_UP_STOP_S if has_failed else STOP_LIMIT_S)
    run.levels = search.by_value(run.levels)
    return run


def pace(options: PerfOptions) -> Pace:
    return Pace(
        options.measurement_interval / 1000,
        options.measurement_request_count if options.measurement_mode == "count_windows" else 0,
        options.request_count,
        options.warmup_request_count,
        options.stability_percentage,
        options.max_trials,
    )


def _driver(options: PerfOptions, target: LoadTarget) -> LoadDriver:
    if options.processes > 1:
        return WorkerDriver(target.traffic, target.load, options, options.processes)
    return LocalDriver(target.traffic, target.load, digest=target.digest, check=target.check)


def _poller(options: PerfOptions) -> MetricsPoller | None:
    if not options.collect_metrics:
        return None
    address = parse_address(options.metrics_url, 8002)
    return MetricsPoller(address, address.path or "/metrics", options.metrics_interval / 1000)


def _levels(
    options: PerfOptions, target: LoadTarget, measurer: Measurer
) -> AsyncIterator[LevelResult]:
    is_within = search.within_threshold(options.latency_threshold, options.percentile)
    if options.request_intervals:
        times = schedule.read_intervals(Path(options.request_intervals))
        return _once(measurer, Level(Mode.INTERVALS, len(times) * 1e6 / sum(times), times=times))
    if options.replay:
        return _once(measurer, Level(Mode.REPLAY, options.replay_speed, times=target.offsets_s))
    if options.periodic_concurrency_range is not None:
        return _once(measurer, Level(Mode.PERIODIC, options.periodic_concurrency_range.start))
    values = options.request_rate_range or options.concurrency_range or Range(1, 1, 1)
    mode = Mode.REQUEST_RATE if options.request_rate_range is not None else Mode.CONCURRENCY
    make_level = search.level_maker(Level(mode, values.start, options.request_distribution))
    walk = search.binary if options.binary_search else search.linear
    return walk(values, lambda value: measurer.measure(make_level(value)), is_within)


async def _once(measurer: Measurer, level: Level) -> AsyncIterator[LevelResult]:
    yield await measurer.measure(level)


@contextlib.contextmanager
def _disabled_garbage_collector() -> Iterator[None]:
    """Disables garbage collection, which would be measured as latency of the server."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def run_one(options: PerfOptions) -> tuple[int, RunResult | None]:
    """Runs a measurement and prints its results. Raises only OptionError."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    line = LiveLine(wants_live(options.progress))
    try:
        target = await prepare(options)
    except (ControlError, ConnectError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE, None
    except asyncio.CancelledError:
        return 130, None
    finished: list[LevelResult] = []
    try:
        print(text_report.settings_text(options, target.facts))
        watcher = PerfProgress(
            line, is_verbose=options.verbose, latency_name=_latency_name(options)
        )

        def on_result(result: LevelResult) -> None:
            finished.append(result)
            print(text_report.level_text(result, options, target.facts), flush=True)

        result = await measure_all(options, target, watcher, on_result)
    except asyncio.CancelledError:
        line.clear()
        print(f"Interrupted after {len(finished)} finished levels.", file=sys.stderr)
        result = RunResult(options, target, search.by_value(finished))
        write_reports(result)
        return 130, result
    finally:
        line.clear()
        await target.close()
        loop.remove_signal_handler(signal.SIGINT)
    write_reports(result)
    return result.exit_code, result


def _latency_name(options: PerfOptions) -> str:
    return "Avg latency" if options.percentile < 0 else f"p{options.percentile} latency"


def write_reports(result: RunResult) -> None:
    """Prints the final table and writes the requested files. Raises OptionError if a file cannot
    be written."""
    options = result.options
    if result.levels:
        print(text_report.last_table(result.levels, options), end="", flush=True)
    if options.latency_report_file:
        write_file(
            options.latency_report_file, csv_text(result.levels, options, result.target.facts)
        )
    if options.profile_export_file:
        try:
            write_profile(
                Path(options.profile_export_file),
                result.levels,
                result.target,
                options.service_kind,
                options.endpoint,
                __version__,
            )
        except OSError as error:
            raise OptionError(
                f"{options.profile_export_file} cannot be written: {error.strerror}"
            ) from None


def write_file(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from None
