"""The last hour of every model: a point each ten seconds, and what happened in between.

In:  readings, at times that the caller chooses. Out: points and events as JSON-ready structs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from naiad.console.model_reading import ModelReading
from naiad.console.model_row import build_rates
from naiad.console.series import INTERVAL_S, NUM_POINTS, SeriesTable

__all__ = ["INTERVAL_S", "MAX_EVENTS", "NUM_POINTS", "Event", "History", "ModelHistory"]

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
    series: dict[str, list[float | None]]
    events: list[Event]


class History:
    def __init__(self) -> None:
        self._table = SeriesTable(SERIES)
        self._readings: dict[str, ModelReading] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)

    @property
    def last_s(self) -> float | None:
        """When the last point was measured; None before the first."""
        return self._table.last_s

    @property
    def readings(self) -> dict[str, ModelReading]:
        """The readings of the last point, by model."""
        return self._readings

    def add(self, readings: Iterable[ModelReading], now_s: float) -> None:
        seconds = 0.0 if self.last_s is None else now_s - self.last_s
        readings = list(readings)
        rows = {}
        for reading in readings:
            old = self._readings.get(reading.name)
            rows[reading.name] = _values(reading, old, seconds)
            if self.last_s is not None:
                self._events += _events(reading, old, now_s)
        self._readings = {reading.name: reading for reading in readings}
        self._table.add(rows, now_s)

    def show(self, model_name: str) -> ModelHistory:
        """Has no points for a model that there is no reading of."""
        points = self._table.show(model_name)
        events = [event for event in self._events if event.model == model_name]
        return ModelHistory(points.times_s, points.series, events)

    def names(self) -> list[str]:
        return self._table.names()


def _values(reading: ModelReading, old: ModelReading | None, seconds: float) -> list[float | None]:
    rates = build_rates(reading, old, seconds)
    return [
        *(getattr(rates, name) for name in _RATE_SERIES),
        reading.num_queued,
        sum(instance.process.memory_bytes for instance in reading.instances),
        reading.kv_cache_usage,
    ]


def _events(new: ModelReading, old: ModelReading | None, now_s: float) -> Iterable[Event]:
    old_state = "" if old is None else old.state
    if new.state != old_state:
        yield Event(now_s, new.name, f"{old_state or 'not loaded'} → {new.state or 'not loaded'}")
    elif old is not None and new.state and new.load_s != old.load_s:
        yield Event(now_s, new.name, _deployment(new))
    if old is not None and new.num_restarts > old.num_restarts:
        number = new.num_restarts - old.num_restarts
        yield Event(now_s, new.name, f"{number} worker restart{'s' if number > 1 else ''}")


def _deployment(reading: ModelReading) -> str:
    """Every copy of a model has a load time of its own."""
    versions = ", ".join(str(row.version) for row in reading.versions if row.state == "READY")
    return f"loaded again, version {versions}" if versions else "loaded again"
