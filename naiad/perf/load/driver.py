"""A load that can be told to be so strong, and asked what happened: in this process, or spread over
several.

In:  `set_level`. Out: `take()`, the Records since the last time. Rule: whoever measures knows only
     this interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from naiad.perf.load.closed_loop import ClosedLoop
from naiad.perf.load.level import Level
from naiad.perf.load.load import Load, Share
from naiad.perf.load.open_loop import OpenLoop
from naiad.perf.load.periodic_loop import PeriodicLoop, PeriodicSteps
from naiad.perf.load.sequence_loop import SequenceLoop
from naiad.perf.load.traffic import ChannelMaker, Traffic, source_maker
from naiad.perf.measure.recorder import Recorder, Records


class DriverStatus(msgspec.Struct, frozen=True):
    num_sent: int
    num_in_flight: int
    num_ended: int
    num_in_line: int = 0
    """Requests whose time has come, but that found no channel."""
    is_exhausted: bool = False
    last_error: str = ""


class Driver(Protocol):
    broken: asyncio.Event

    async def set_level(self, level: Level, num_requests: int = -1) -> None:
        """`num_requests`: only so many in all. Raises ConnectError."""

    async def take(self) -> Records: ...

    async def status(self) -> DriverStatus: ...

    async def stop(self) -> None: ...


class LoadOptions(msgspec.Struct, frozen=True):
    num_sequences: int = 4
    is_serial: bool = False
    has_details: bool = False
    is_open_loop: bool = False
    periodic: PeriodicSteps | None = None


class LocalDriver:
    def __init__(
        self,
        traffic: Traffic,
        options: LoadOptions,
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

    async def take(self) -> Records:
        return self._recorder.take()

    async def status(self) -> DriverStatus:
        load = self._load
        return DriverStatus(
            load.num_sent,
            load.num_in_flight,
            self._recorder.num_ended,
            load.num_in_line,
            load.is_exhausted,
            load.last_error,
        )

    async def stop(self) -> None:
        await self._load.stop()
        self._maker.close()


def _build_load(
    traffic: Traffic,
    options: LoadOptions,
    recorder: Recorder,
    maker: ChannelMaker,
    share: Share,
    given: dict[str, Any],
) -> Load:
    make_source = source_maker(traffic, share.number, share.num_shares)
    if options.periodic is not None:
        return PeriodicLoop(recorder, maker.make, make_source(), options.periodic, **given)
    if not options.is_open_loop:
        return ClosedLoop(recorder, maker.make, make_source, **given)
    if traffic.sequence is None:
        return OpenLoop(recorder, maker.make, make_source(), **given)
    sources = [make_source() for _ in range(options.num_sequences)]
    is_serial = options.is_serial or traffic.protocol != "stream"
    return SequenceLoop(recorder, maker.make, sources, is_serial=is_serial, **given)
