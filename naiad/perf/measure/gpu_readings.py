"""Reads GPU utilization, power and memory from the server's metrics page during a window.

In:  the text of the page, read at intervals.
Out: GpuReadings: the average utilization and power and the highest memory use of each GPU.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import msgspec

from naiad.perf.channels.address import Address
from naiad.perf.channels.control import ControlError
from naiad.perf.channels.control_http import fetch

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Sample = tuple[str, dict[str, str], float]


class GpuReadings(msgspec.Struct, frozen=True):
    """Readings by gpu_uuid."""

    utilization: dict[str, float] = {}
    """Average utilization, from 0 to 1."""
    power_watts: dict[str, float] = {}
    memory_used_bytes: dict[str, float] = {}
    """Highest memory use."""
    memory_total_bytes: dict[str, float] = {}
    problem: str = ""
    """The reason why nothing could be read; empty on success."""


def parse_samples(text: str, prefix: str = "nv_gpu_") -> list[Sample]:
    """Parses the lines of the page that start with `prefix`. Ignores all other lines."""
    samples: list[Sample] = []
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        samples.append((match["name"], dict(_LABEL.findall(match["labels"] or "")), value))
    return samples


def summarize(pages: Iterable[list[Sample]]) -> GpuReadings:
    readings: dict[str, dict[str, list[float]]] = {}
    for page in pages:
        for name, labels, value in page:
            readings.setdefault(name, {}).setdefault(labels.get("gpu_uuid", ""), []).append(value)

    def averages(name: str) -> dict[str, float]:
        return {gpu: sum(values) / len(values) for gpu, values in readings.get(name, {}).items()}

    def highest(name: str) -> dict[str, float]:
        return {gpu: max(values) for gpu, values in readings.get(name, {}).items()}

    return GpuReadings(
        averages("nv_gpu_utilization"),
        averages("nv_gpu_power_usage"),
        highest("nv_gpu_memory_used_bytes"),
        highest("nv_gpu_memory_total_bytes"),
    )


class MetricsPoller:
    """Reads the page at intervals, from `start` to `stop`."""

    def __init__(self, address: Address, path: str, interval_s: float) -> None:
        self._address = address
        self._path = path
        self._interval_s = interval_s
        self._pages: list[list[Sample]] = []
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._poll())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def collect(self) -> GpuReadings:
        pages, self._pages = self._pages, []
        return msgspec.structs.replace(summarize(pages), problem="" if pages else self._problem)

    async def _poll(self) -> None:
        while True:
            try:
                page = await fetch(self._address, self._path)
                self._pages.append(parse_samples(page.decode("utf-8", "replace")))
            except ControlError as error:
                self._problem = str(error)
            await asyncio.sleep(self._interval_s)


def merge_readings(parts: list[GpuReadings]) -> GpuReadings:
    def combine(name: str, choose: str) -> dict[str, float]:
        gpus = {gpu for part in parts for gpu in getattr(part, name)}
        values = {
            gpu: [getattr(part, name)[gpu] for part in parts if gpu in getattr(part, name)]
            for gpu in sorted(gpus)
        }
        return {
            gpu: max(readings) if choose == "max" else sum(readings) / len(readings)
            for gpu, readings in values.items()
        }

    return GpuReadings(
        combine("utilization", "average"),
        combine("power_watts", "average"),
        combine("memory_used_bytes", "max"),
        combine("memory_total_bytes", "max"),
        next((part.problem for part in parts if part.problem), ""),
    )
