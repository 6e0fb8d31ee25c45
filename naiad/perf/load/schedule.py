"""Computes the intended send times of an open loop. They do not depend on the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from naiad.settings.option import OptionError


def constant(per_s: float, start_ns: int) -> Iterator[int]:
    # Each time is computed from the start, so that rounding errors do not accumulate.
    return (start_ns + round(number * 1e9 / per_s) for number in itertools.count())


def poisson(per_s: float, start_ns: int, seed: int = 0) -> Iterator[int]:
    random = Random(seed)
    time_ns = float(start_ns)
    while True:
        yield round(time_ns)
        time_ns += random.expovariate(per_s) * 1e9


def intervals(intervals_us: Sequence[int], start_ns: int) -> Iterator[int]:
    """Repeats the intervals endlessly."""
    time_ns = start_ns
    for interval_us in itertools.cycle(intervals_us):
        time_ns += interval_us * 1000
        yield time_ns


def replay(offsets_s: Sequence[float], start_ns: int, speed: float = 1.0) -> Iterator[int]:
    """Returns the send times of a trace, which is replayed once."""
    return (start_ns + round(offset_s * 1e9 / speed) for offset_s in offsets_s)


def read_intervals(path: Path) -> list[int]:
    """Reads one interval in microseconds per line. Raises OptionError."""
    try:
        lines = path.read_text().split()
    except OSError as error:
        raise OptionError(f"--request-intervals {path} cannot be read: {error.strerror}") from None
    try:
        values = [int(line) for line in lines]
    except ValueError:
        raise OptionError(
            f"--request-intervals {path}: expected one number of microseconds per line"
        ) from None
    if not values or min(values) < 0 or sum(values) == 0:
        raise OptionError(
            f"--request-intervals {path}: expected intervals of 0 or more microseconds, not all 0"
        )
    return values
