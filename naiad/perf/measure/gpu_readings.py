"""The metrics page, read now and then during a window: GPU utilization, power and memory, by GPU.

In:  the page's text. Out: GpuReadings: averages of utilization and power, the highest memory use.
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
    """Each by gpu_uuid."""

    utilization: dict[str, float] = {}
    """Average, 0 to 1."""
    power_watts: dict[str, float] = {}
    memory_used_bytes: dict[str, float] = {}
    """Highest."""
    memory_total_bytes: dict[str, float] = {}
    problem: str = ""
    """Why nothing could be read."""


def parse_samples(text: str, prefix: str = "nv_gpu_") -> list[Sample]:
    """Lines of the page whose names begin so; others cost nothing."""
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
    found: dict[str, dict[str, list[float]]] = {}
    for page in pages:
        for name, labels, value in page:
            found.setdefault(name, {}).setdefault(labels.get("gpu_uuid", ""), []).append(value)

    def averages(name: str) -> dict[str, float]:
        return {gpu: sum(values) / len(values) for gpu, values in found.get(name, {}).items()}

    def highest(name: str) -> dict[str, float]:
        return {gpu: max(values) for gpu, values in found.get(name, {}).items()}

    return GpuReadings(
        averages("nv_gpu_utilization"),
        averages("nv_gpu_power_usage"),
        highest("nv_gpu_memory_used_bytes"),
        highest("nv_gpu_memory_total_bytes"),
    )


class MetricsPoller:
    """Reads the page every interval until stopped; one task, owned by whoever starts it."""

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

    def take(self) -> GpuReadings:
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
            gpu: max(found) if choose == "max" else sum(found) / len(found)
            for gpu, found in values.items()
        }

    return GpuReadings(
        combine("utilization", "average"),
        combine("power_watts", "average"),
        combine("memory_used_bytes", "max"),
        combine("memory_total_bytes", "max"),
        next((part.problem for part in parts if part.problem), ""),
    )
