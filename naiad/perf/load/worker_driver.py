"""Generates the load in several processes (--processes N), for rates that one core cannot send.

Each child runs a LocalDriver with its share of the concurrency or of the schedule. Commands and
records are sent over pipes. Times are CLOCK_MONOTONIC, which is the same for all processes of a
machine.
Rule: if a child dies, the run stops with an error.
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
from naiad.perf.load.driver import DriverOptions, DriverStatus, LocalDriver
from naiad.perf.load.level import Level
from naiad.perf.load.load import STOP_LIMIT_S, Share
from naiad.perf.load.traffic import Traffic
from naiad.perf.measure.recorder import Records, merge
from naiad.perf.options import PerfOptions

_LEAD_NS = 200_000_000
"""Time between the command to the children and the start of a schedule."""
_STOP_MARGIN_S = 10.0


class WorkerDriver:
    def __init__(
        self, traffic: Traffic, load: DriverOptions, options: PerfOptions, num_processes: int
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

    async def _command(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Sends one command to each child and returns all replies. Raises a child's
        ConnectError."""
        return await asyncio.gather(
            *(
                asyncio.to_thread(self._command_one, *pair)
                for pair in zip(self._pipes, commands, strict=True)
            )
        )

    def _command_one(
        self, pipe: multiprocessing.connection.Connection, command: tuple[Any, ...]
    ) -> Any:
        try:
            pipe.send(command)
            reply = pipe.recv()
        except (EOFError, OSError):
            raise ConnectError("a load process ended unexpectedly") from None
        if isinstance(reply, ConnectError):
            raise reply
        return reply

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        start_ns = time.monotonic_ns() + _LEAD_NS
        count = self._num_processes
        counts = [
            -1 if num_requests < 0 else num_requests // count + (number < num_requests % count)
            for number in range(count)
        ]
        await self._command(
            [
                ("apply", level, Share(number, count, counts[number], start_ns))
                for number in range(count)
            ]
        )

    async def collect(self) -> Records:
        parts: list[Records] = await self._command([("collect",)] * self._num_processes)
        merged = merge(parts)
        order = np.argsort(merged.end, kind="stable")
        details = [merged.details[index] for index in order] if merged.details else []
        return Records(
            merged.numbers[:, order],
            details,
            sorted(merged.failures, key=lambda failure: failure.end_ns),
        )

    async def status(self) -> DriverStatus:
        replies: list[tuple[DriverStatus, bool]] = await self._command(
            [("status",)] * self._num_processes
        )
        if any(is_broken for _, is_broken in replies):
            self.broken.set()
        statuses = [status for status, _ in replies]
        return DriverStatus(
            sum(status.num_sent for status in statuses),
            sum(status.num_in_flight for status in statuses),
            sum(status.num_ended for status in statuses),
            sum(status.num_queued for status in statuses),
            all(status.is_exhausted for status in statuses),
            next((status.last_error for status in statuses if status.last_error), ""),
        )

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        try:
            async with asyncio.timeout(limit_s + _STOP_MARGIN_S):
                await self._command([("stop", limit_s)] * self._num_processes)
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
    load: DriverOptions,
    options: PerfOptions,
    number: int,
    count: int,
) -> None:
    """The main function of a child process."""
    try:
        uvloop.run(_serve_commands(pipe, traffic, load, options, number, count))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        pass


async def _serve_commands(
    pipe: multiprocessing.connection.Connection,
    traffic: Traffic,
    load: DriverOptions,
    options: PerfOptions,
    number: int,
    count: int,
) -> None:
    # Digests are functions, which cannot be pickled, so each process makes its own.
    from naiad.perf.report.digests import make_digest_for

    driver = LocalDriver(traffic, load, digest=make_digest_for(options), share=Share(number, count))
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe.fileno(), readable.set)
    while True:
        await readable.wait()
        readable.clear()
        while pipe.poll():
            command = pipe.recv()
            try:
                reply: Any = await _handle(driver, command)
            except ConnectError as error:
                reply = error
            pipe.send(reply)
            if command[0] == "stop":
                return


async def _handle(driver: LocalDriver, command: tuple[Any, ...]) -> Any:
    match command:
        case ("apply", Level() as level, Share() as share):
            await driver.apply(level, share)
        case ("collect",):
            return await driver.collect()
        case ("status",):
            return await driver.status(), driver.broken.is_set()
        case ("stop", float() as limit_s):
            await driver.stop(limit_s)
    return None
