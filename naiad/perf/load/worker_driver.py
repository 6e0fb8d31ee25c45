"""--processes N: the load is made by several processes, for rates that one core cannot send.

Each child runs a LocalDriver with its share of the concurrency or of the schedule; commands and
records travel over pipes. Clocks are CLOCK_MONOTONIC, which is the same for all processes of a
machine. Rule: a child that dies breaks the run with a clear word.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import time
from typing import Any

import numpy as np
import uvloop

from naiad.perf.channels.call import ConnectError
from naiad.perf.load.driver import DriverStatus, LoadOptions, LocalDriver
from naiad.perf.load.level import Level
from naiad.perf.load.load import Share
from naiad.perf.load.traffic import Traffic
from naiad.perf.measure.recorder import Records, merge
from naiad.perf.options import PerfOptions

_LEAD_NS = 200_000_000
"""Children hear of a schedule before it begins."""
_STOP_LIMIT_S = 40.0


class WorkerDriver:
    def __init__(
        self, traffic: Traffic, load: LoadOptions, options: PerfOptions, num_processes: int
    ) -> None:
        self.broken = asyncio.Event()
        self._num_processes = num_processes
        context = multiprocessing.get_context("spawn")
        self._pipes: list[multiprocessing.connection.Connection] = []
        self._processes: list[Any] = []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, traffic, load, options, number, num_processes),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    async def _ask(self, requests: list[tuple[Any, ...]]) -> list[Any]:
        """One request to each child, all answers; a child's ConnectError is raised here."""
        return await asyncio.gather(
            *(
                asyncio.to_thread(self._ask_one, *pair)
                for pair in zip(self._pipes, requests, strict=True)
            )
        )

    def _ask_one(
        self, pipe: multiprocessing.connection.Connection, request: tuple[Any, ...]
    ) -> Any:
        try:
            pipe.send(request)
            answer = pipe.recv()
        except (EOFError, OSError):
            raise ConnectError("a load process ended unexpectedly") from None
        if isinstance(answer, ConnectError):
            raise answer
        return answer

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        start_ns = time.monotonic_ns() + _LEAD_NS
        count = self._num_processes
        counts = [
            -1 if num_requests < 0 else num_requests // count + (number < num_requests % count)
            for number in range(count)
        ]
        await self._ask(
            [
                ("apply", level, Share(number, count, counts[number], start_ns))
                for number in range(count)
            ]
        )

    async def take(self) -> Records:
        parts: list[Records] = await self._ask([("take",)] * self._num_processes)
        merged = merge(parts)
        order = np.argsort(merged.end, kind="stable")
        details = [merged.details[place] for place in order] if merged.details else []
        return Records(
            merged.numbers[:, order],
            details,
            sorted(merged.failures, key=lambda failure: failure.end_ns),
        )

    async def status(self) -> DriverStatus:
        answers: list[tuple[DriverStatus, bool]] = await self._ask(
            [("status",)] * self._num_processes
        )
        if any(is_broken for _, is_broken in answers):
            self.broken.set()
        statuses = [status for status, _ in answers]
        return DriverStatus(
            sum(status.num_sent for status in statuses),
            sum(status.num_in_flight for status in statuses),
            sum(status.num_ended for status in statuses),
            sum(status.num_in_line for status in statuses),
            all(status.is_exhausted for status in statuses),
            next((status.last_error for status in statuses if status.last_error), ""),
        )

    async def stop(self) -> None:
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                await self._ask([("stop",)] * self._num_processes)
        except (ConnectError, TimeoutError):
            pass
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(1)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(
    pipe: multiprocessing.connection.Connection,
    traffic: Traffic,
    load: LoadOptions,
    options: PerfOptions,
    number: int,
    count: int,
) -> None:
    """The child's life."""
    try:
        uvloop.run(_answer(pipe, traffic, load, options, number, count))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass


async def _answer(
    pipe: multiprocessing.connection.Connection,
    traffic: Traffic,
    load: LoadOptions,
    options: PerfOptions,
    number: int,
    count: int,
) -> None:
    # Digests are functions, so each process makes its own from the options.
    from naiad.perf.report.digests import make_digest_for

    driver = LocalDriver(traffic, load, digest=make_digest_for(options), share=Share(number, count))
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe.fileno(), readable.set)
    while True:
        await readable.wait()
        readable.clear()
        while pipe.poll():
            request = pipe.recv()
            try:
                answer: Any = await _handle(driver, request)
            except ConnectError as error:
                answer = error
            pipe.send(answer)
            if request[0] == "stop":
                return


async def _handle(driver: LocalDriver, request: tuple[Any, ...]) -> Any:
    match request:
        case ("apply", Level() as level, Share() as share):
            await driver.apply(level, share)
        case ("take",):
            return await driver.take()
        case ("status",):
            return await driver.status(), driver.broken.is_set()
        case ("stop",):
            await driver.stop()
    return None
