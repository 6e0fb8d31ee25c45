"""The last hour of every model, in memory: one point each ten seconds.

In:  readings, at times that the caller chooses. Out: points and events as JSON-ready structs.
Rule: memory is bounded: NUM_POINTS points of each series, and series only for models that had a
      reading within the hour.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from naiad.console.model_reading import ModelReading
from naiad.console.model_row import build_rates

INTERVAL_S = 10.0
NUM_POINTS = 360
MAX_EVENTS = 200
_RATE_SERIES = (
    "requests_per_s", "failures_per_s", "p50_ms", "p90_ms", "p99_ms", "batch_size",
    "prompt_tokens_per_s", "output_tokens_per_s", "cpu",
)  # fmt: skip
SERIES = (*_RATE_SERIES, "num_queued", "memory_bytes", "kv_cache_usage")


class Event(msgspec.Struct, frozen=True):
    """Something that belongs on the time line."""

    time_s: float
    model: str
    text: str


class ModelHistory(msgspec.Struct, frozen=True):
    times_s: list[float]
    """When each point was measured, on the clock of time.time()."""
    series: dict[str, list[float | None]]
    """Points by name of the series; None where nothing was measured."""
    events: list[Event]


class History:
    def __init__(self) -> None:
        self._times_s: npt.NDArray[np.float64] = np.full(NUM_POINTS, math.nan)
        self._num_points = 0
        self._last_s: float | None = None
        self._points: dict[str, npt.NDArray[np.float32]] = {}
        self._readings: dict[str, ModelReading] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    @property
    def last_s(self) -> float | None:
        """When the last point was measured; None before the first."""
        return self._last_s

    @property
    def readings(self) -> dict[str, ModelReading]:
        """The readings of the last point, by model."""
        return self._readings

    def add(self, readings: Iterable[ModelReading], now_s: float) -> None:
        seconds = 0.0 if self._last_s is None else now_s - self._last_s
        slot = self._num_points % NUM_POINTS
        self._times_s[slot] = now_s
        for row in self._points.values():
            row[:, slot] = math.nan
        readings = list(readings)
        for reading in readings:
            old = self._readings.get(reading.name)
            points = self._points.get(reading.name)
            if points is None:
                points = np.full((len(SERIES), NUM_POINTS), math.nan, np.float32)
                self._points[reading.name] = points
            points[:, slot] = _values(reading, old, seconds)
            if self._last_s is not None:
                self._events += _events(reading, old, now_s)
        self._readings = {reading.name: reading for reading in readings}
        self._points = {
            name: points
            for name, points in self._points.items()
            if name in self._readings or not np.isnan(points).all()
        }
        self._num_points += 1
        self._last_s = now_s

    def show(self, model_name: str) -> ModelHistory:
        """Has no points for a model that there is no reading of."""
        points = self._points.get(model_name)
        events = [event for event in self._events if event.model == model_name]
        if points is None:
            return ModelHistory([], {name: [] for name in SERIES}, events)
        order = self._order()
        return ModelHistory(
            [round(time_s, 1) for time_s in self._times_s[order].tolist()],
            {name: _shown(row[order]) for name, row in zip(SERIES, points, strict=True)},
            events,
        )

    def names(self) -> list[str]:
        return sorted(self._points)

    def _order(self) -> npt.NDArray[np.intp]:
        """The slots from the oldest point to the latest."""
        if self._num_points <= NUM_POINTS:
            return np.arange(self._num_points)
        return (np.arange(NUM_POINTS) + self._num_points) % NUM_POINTS


def _values(reading: ModelReading, old: ModelReading | None, seconds: float) -> list[float]:
    rates = build_rates(reading, old, seconds)
    values = [getattr(rates, name) for name in _RATE_SERIES]
    values += [
        reading.num_queued,
        sum(instance.process.memory_bytes for instance in reading.instances),
        reading.kv_cache_usage,
    ]
    return [math.nan if value is None else float(value) for value in values]


def _shown(row: npt.NDArray[np.float32]) -> list[float | None]:
    return [None if math.isnan(value) else float(f"{value:.4g}") for value in row.tolist()]


def _events(new: ModelReading, old: ModelReading | None, now_s: float) -> Iterable[Event]:
    old_state = "" if old is None else old.state
    if new.state != old_state:
        yield Event(now_s, new.name, f"{old_state or 'not loaded'} → {new.state or 'not loaded'}")
    if old is not None and new.num_restarts > old.num_restarts:
        number = new.num_restarts - old.num_restarts
        yield Event(now_s, new.name, f"{number} worker restart{'s' if number > 1 else ''}")
