"""Reads the server's statistics before and after a window.

In:  a ServerControl.
Out: a ModelDelta for the model, with those of its composing models. Times are in us, averaged over
     the requests of the window.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from naiad.perf.channels.control import ControlError, ServerControl
from naiad.perf.data.model_facts import ModelFacts

_PHASES = (
    "success",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)


class Counters(msgspec.Struct):
    """Counters since the server started, or their increase during a window."""

    inference_count: int = 0
    execution_count: int = 0
    count: dict[str, int] = {}
    ns: dict[str, int] = {}

    def minus(self, earlier: Counters) -> Counters:
        return Counters(
            self.inference_count - earlier.inference_count,
            self.execution_count - earlier.execution_count,
            {phase: value - earlier.count.get(phase, 0) for phase, value in self.count.items()},
            {phase: value - earlier.ns.get(phase, 0) for phase, value in self.ns.items()},
        )

    @property
    def is_negative(self) -> bool:
        values = (self.inference_count, self.execution_count, *self.count.values())
        return min(values) < 0

    def plus(self, other: Counters) -> Counters:
        return Counters(
            self.inference_count + other.inference_count,
            self.execution_count + other.execution_count,
            {phase: value + self.count.get(phase, 0) for phase, value in other.count.items()},
            {phase: value + self.ns.get(phase, 0) for phase, value in other.ns.items()},
        )

    def average_us(self, phase: str) -> float:
        """Returns the average time of a phase per successful request."""
        requests = self.count.get("success", 0)
        return self.ns.get(phase, 0) / requests / 1000 if requests else 0.0


class ModelDelta(msgspec.Struct, frozen=True):
    name: str
    version: str
    counters: Counters
    composing: tuple[ModelDelta, ...] = ()

    @property
    def queue_us(self) -> float:
        return (
            sum(part.queue_us for part in self.composing)
            if self.composing
            else self.counters.average_us("queue")
        )

    def phase_us(self, phase: str) -> float:
        return (
            sum(part.phase_us(phase) for part in self.composing)
            if self.composing
            else self.counters.average_us(phase)
        )

    @property
    def compute_us(self) -> float:
        return sum(
            self.phase_us(phase) for phase in ("compute_input", "compute_infer", "compute_output")
        )

    @property
    def cache_us(self) -> float:
        return self.counters.average_us("cache_hit") + self.counters.average_us("cache_miss")

    @property
    def overhead_us(self) -> float:
        return max(
            0.0,
            self.counters.average_us("success") - self.queue_us - self.compute_us - self.cache_us,
        )


Snapshot = dict[tuple[str, str], Counters]


class StatisticsReader:
    def __init__(self, control: ServerControl, facts: ModelFacts) -> None:
        self._control = control
        self._facts = facts
        self._models = [(facts.name, facts.version), *facts.composing]

    async def read(self) -> Snapshot | None:
        """Returns None if the server has no statistics or does not respond. The client's figures
        are still valid then."""
        if not self._facts.has_statistics:
            return None
        snapshot: Snapshot = {}
        with contextlib.suppress(ControlError):
            for model, version in self._models:
                entries = await self._control.model_statistics(model, version)
                snapshot[model, version] = _sum(entries)
            return snapshot
        return None

    def delta(self, before: Snapshot | None, after: Snapshot | None) -> ModelDelta | None:
        """None where nothing is known, or where a count went back: the readings are then of two
        servers, behind a router, or of a server that has started again."""
        if before is None or after is None:
            return None
        deltas = [
            ModelDelta(
                name, version, after[name, version].minus(before.get((name, version), Counters()))
            )
            for name, version in self._models
        ]
        if any(delta.counters.is_negative for delta in deltas):
            return None
        return ModelDelta(deltas[0].name, deltas[0].version, deltas[0].counters, tuple(deltas[1:]))


def merge_deltas(parts: list[ModelDelta | None]) -> ModelDelta | None:
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    counters = Counters()
    for part in known:
        counters = counters.plus(part.counters)
    composing = [
        merge_deltas([part.composing[number] for part in known])
        for number in range(len(known[0].composing))
    ]
    return ModelDelta(
        known[0].name,
        known[0].version,
        counters,
        tuple(part for part in composing if part is not None),
    )


def _sum(entries: list[dict[str, Any]]) -> Counters:
    """Adds up the statistics of all versions in the response."""
    total = Counters()
    for entry in entries:
        stats = entry.get("inference_stats", {})
        total = total.plus(
            Counters(
                int(entry.get("inference_count", 0)),
                int(entry.get("execution_count", 0)),
                {phase: int(stats.get(phase, {}).get("count", 0)) for phase in _PHASES},
                {phase: int(stats.get(phase, {}).get("ns", 0)) for phase in _PHASES},
            )
        )
    return total
