"""The interface to a load that runs in this process or in several processes.

In:  `set_level`. Out: `collect()`, which returns the Records since the previous call.
Rule: the code that measures uses only this interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from naiad.perf.load.closed_loop import ClosedLoop
from naiad.perf.load.level import Level
from naiad.perf.load.load import STOP_LIMIT_S, Load, Share
from naiad.perf.load.open_loop import OpenLoop
from naiad.perf.load.periodic_loop import PeriodicLoop, PeriodicSteps
from naiad.perf.load.sequence_loop import SequenceLoop
from naiad.perf.load.traffic import ChannelMaker, Traffic, source_maker
from naiad.perf.measure.recorder import Recorder, Records


class DriverStatus(msgspec.Struct, frozen=True):
    num_sent: int
    num_in_flight: int
    num_ended: int
    num_queued: int = 0
    """Number of requests that are due but have no free channel."""
    is_exhausted: bool = False
    last_error: str = ""


class LoadDriver(Protocol):
    broken: asyncio.Event

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        """Sets the load. With `num_requests`, sends only this many. Raises ConnectError."""

    async def collect(self) -> Records: ...

    async def status(self) -> DriverStatus: ...

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        """Waits so long for requests in flight."""


class DriverOptions(msgspec.Struct, frozen=True):
    num_sequences: int = 4
    is_serial: bool = False
    has_details: bool = False
    is_open_loop: bool = False
    periodic: PeriodicSteps | None = None


class LocalDriver:
    def __init__(
        self,
        traffic: Traffic,
        options: DriverOptions,
        *,
        digest: Callable[[Any], Any] | None = None,
        check: Callable[[int, Any], str | None] | None = None,
        share: Share | None = None,
    ) -> None:
        self._maker = ChannelMaker(traffic)
        self._recorder = Recorder(has_details=options.has_details)
        self._share = share or Share()
        self._load = _build_load(
            traffic,
            options,
            self._recorder,
            self._maker,
            self._share,
            {"digest": digest, "check": check},
        )
        self.broken = self._load.broken

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        await self.apply(level, Share(self._share.number, self._share.num_shares, num_requests))

    async def apply(self, level: Level, share: Share) -> None:
        await self._load.apply(level, share)

    async def collect(self) -> Records:
        return self._recorder.collect()

    async def status(self) -> DriverStatus:
        load = self._load
        return DriverStatus(
            load.num_sent,
            load.num_in_flight,
            self._recorder.num_ended,
            load.num_queued,
            load.is_exhausted,
            load.last_error,
        )

    async def stop(self, limit_s: float = STOP_LIMIT_S) -> None:
        await self._load.stop(limit_s)
        self._maker.close()


def _build_load(
    traffic: Traffic,
    options: DriverOptions,
    recorder: Recorder,
    maker: ChannelMaker,
    share: Share,
    hooks: dict[str, Any],
) -> Load:
    make_source = source_maker(traffic, share.number, share.num_shares)
    if options.periodic is not None:
        return PeriodicLoop(recorder, maker.make, make_source(), options.periodic, **hooks)
    if not options.is_open_loop:
        return ClosedLoop(recorder, maker.make, make_source, **hooks)
    if traffic.sequence is None:
        return OpenLoop(recorder, maker.make, make_source(), **hooks)
    sources = [make_source() for _ in range(options.num_sequences)]
    is_serial = options.is_serial or traffic.protocol != "stream"
    return SequenceLoop(recorder, maker.make, sources, is_serial=is_serial, **hooks)
