"""Series of numbers over the last hour, in memory: one point each ten seconds.

In:  rows of values by name, at times that the caller chooses. Out: points as JSON-ready lists.
Rule: memory is bounded: NUM_POINTS points of each series, rows only for names that had a point
      within the hour, and at most `max_rows` of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

INTERVAL_S = 10.0
NUM_POINTS = 360


class Points(msgspec.Struct, frozen=True):
    times_s: list[float]
    """When each point was measured, on the clock of time.time()."""
    series: dict[str, list[float | None]]
    """Points by name of the series; None where nothing was measured."""


class SeriesTable:
    def __init__(self, series: Sequence[str], max_rows: int = 10_000) -> None:
        self._series = tuple(series)
        self._max_rows = max_rows
        self._times_s: npt.NDArray[np.float64] = np.full(NUM_POINTS, math.nan)
        self._num_points = 0
        self._points: dict[str, npt.NDArray[np.float32]] = {}
        self.last_s: float | None = None
        """When the last point was measured; None before the first."""

    def add(self, rows: Mapping[str, Sequence[float | None]], now_s: float) -> None:
        """`rows` are values in the order of the series, by name."""
        slot = self._num_points % NUM_POINTS
        self._times_s[slot] = now_s
        for points in self._points.values():
            points[:, slot] = math.nan
        for name, values in rows.items():
            row = self._points.get(name)
            if row is None:
                if len(self._points) >= self._max_rows:
                    continue
                row = self._points[name] = np.full(
                    (len(self._series), NUM_POINTS), math.nan, np.float32
                )
            row[:, slot] = [math.nan if value is None else value for value in values]
        self._points = {
            name: points
            for name, points in self._points.items()
            if name in rows or not np.isnan(points).all()
        }
        self._num_points += 1
        self.last_s = now_s

    def show(self, name: str) -> Points:
        """Has no points for a name that there is no row of."""
        points = self._points.get(name)
        if points is None:
            return Points([], {name: [] for name in self._series})
        order = self._order()
        return Points(
            [round(time_s, 1) for time_s in self._times_s[order].tolist()],
            {name: _shown(row[order]) for name, row in zip(self._series, points, strict=True)},
        )

    def names(self) -> list[str]:
        return sorted(self._points)

    def _order(self) -> npt.NDArray[np.intp]:
        """The slots from the oldest point to the latest."""
        if self._num_points <= NUM_POINTS:
            return np.arange(self._num_points)
        return (np.arange(NUM_POINTS) + self._num_points) % NUM_POINTS


def _shown(row: npt.NDArray[np.float32]) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in row.tolist()]
