"""When an open loop sends: intended times, one after the other, that do not depend on how the
server does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from naiad.settings.option import OptionError


def constant(per_s: float, start_ns: int) -> Iterator[int]:
    # From the start each time: no error adds up.
    return (start_ns + round(number * 1e9 / per_s) for number in itertools.count())


def poisson(per_s: float, start_ns: int, seed: int = 0) -> Iterator[int]:
    random = Random(seed)
    at_ns = float(start_ns)
    while True:
        yield round(at_ns)
        at_ns += random.expovariate(per_s) * 1e9


def intervals(intervals_us: Sequence[int], start_ns: int) -> Iterator[int]:
    """Goes round when the end is reached."""
    at_ns = start_ns
    for interval_us in itertools.cycle(intervals_us):
        at_ns += interval_us * 1000
        yield at_ns


def replay(offsets_s: Sequence[float], start_ns: int, speed: float = 1.0) -> Iterator[int]:
    """Once through a trace."""
    return (start_ns + round(offset_s * 1e9 / speed) for offset_s in offsets_s)


def read_intervals(path: Path) -> list[int]:
    """One interval in microseconds on each line."""
    try:
        lines = path.read_text().split()
    except OSError as error:
        raise OptionError(f"--request-intervals {path} cannot be read: {error.strerror}") from None
    try:
        found = [int(line) for line in lines]
    except ValueError:
        raise OptionError(
            f"--request-intervals {path}: expected one number of microseconds on each line"
        ) from None
    if not found or min(found) < 0 or sum(found) == 0:
        raise OptionError(
            f"--request-intervals {path}: expected intervals of 0 or more microseconds, not all 0"
        )
    return found
