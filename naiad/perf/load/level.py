"""One level of load, e.g. concurrency 4 or 200 requests per second."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence

import msgspec

from naiad.perf.load import schedule


class Mode(enum.StrEnum):
    CONCURRENCY = "concurrency"
    REQUEST_RATE = "request_rate"
    INTERVALS = "custom"
    REPLAY = "replay"
    PERIODIC = "periodic_concurrency"

    @property
    def is_open_loop(self) -> bool:
        return self in (Mode.REQUEST_RATE, Mode.INTERVALS, Mode.REPLAY)


class Level(msgspec.Struct, frozen=True):
    mode: Mode
    value: float
    """Concurrency, requests per second, or the speed of a replay."""
    distribution: str = "constant"
    times: Sequence[float] = ()
    """Intervals in microseconds, or offsets of a replay in seconds."""

    @property
    def heading(self) -> str:
        """perf_analyzer's line above the figures of a level."""
        if self.mode is Mode.REQUEST_RATE:
            return f"Request Rate: {self.value:g} inference requests per seconds"
        if self.mode is Mode.INTERVALS:
            rate = f"{self.value:.2f} inference requests per seconds"
            return f"Request Rate: {rate}, from the intervals file"
        if self.mode is Mode.REPLAY:
            return f"Replay: {len(self.times)} requests at {self.value:g}x speed"
        return f"Request concurrency: {self.value:g}"

    @property
    def label(self) -> str:
        """The start of the level's line in the final table."""
        if self.mode in (Mode.REQUEST_RATE, Mode.INTERVALS):
            return f"Request Rate: {self.value:.2f}"
        if self.mode is Mode.REPLAY:
            return f"Replay: {self.value:g}x"
        return f"Concurrency: {self.value:g}"

    def schedule(self, start_ns: int, share: int = 0, num_shares: int = 1) -> Iterator[int]:
        """Returns the intended send times. Each of several workers gets every num_shares-th."""
        match self.mode:
            case Mode.INTERVALS:
                times = schedule.intervals([round(interval) for interval in self.times], start_ns)
            case Mode.REPLAY:
                times = schedule.replay(self.times, start_ns, self.value)
            case _ if self.distribution == "poisson":
                times = schedule.poisson(self.value, start_ns)
            case _:
                times = schedule.constant(self.value, start_ns)
        return itertools.islice(times, share, None, num_shares) if num_shares > 1 else times

    def share(self, number: int, num_shares: int) -> int:
        """Returns one worker's part of the concurrency."""
        return int(self.value) // num_shares + (number < int(self.value) % num_shares)
