"""The last hour of the machine: its processor, its memory, and its GPUs.

In:  readings of the metrics' own thread. Out: points as JSON-ready structs, and why there are none.
"""

from __future__ import annotations

import msgspec

from naiad.console.series import Points, SeriesTable
from naiad.metrics.host import HostReading

_HOST = "host"
_HOST_SERIES = ("cpu", "memory_bytes")
_GPU_SERIES = ("utilization", "memory_bytes", "power_w")
MAX_GPUS = 64


class GpuHistory(msgspec.Struct, frozen=True):
    uuid: str
    memory_total_bytes: int | None
    points: Points


class MachineShown(msgspec.Struct, frozen=True):
    host: Points
    memory_total_bytes: int | None
    gpus: list[GpuHistory]
    gpu_reason: str
    """Why there is no GPU here; empty if there is one."""


class MachineHistory:
    def __init__(self) -> None:
        self._host = SeriesTable(_HOST_SERIES)
        self._gpus = SeriesTable(_GPU_SERIES, MAX_GPUS)
        self._latest = HostReading()

    def add(self, reading: HostReading, now_s: float) -> None:
        self._latest = reading
        self._host.add({_HOST: [reading.cpu_utilization, reading.memory_used_bytes]}, now_s)
        rows = {
            gpu.uuid: [gpu.utilization, gpu.memory_used_bytes, gpu.power_usage_w]
            for gpu in reading.gpus
        }
        self._gpus.add(rows, now_s)

    def show(self) -> MachineShown:
        totals = {gpu.uuid: gpu.memory_total_bytes for gpu in self._latest.gpus}
        return MachineShown(
            self._host.show(_HOST),
            self._latest.memory_total_bytes,
            [
                GpuHistory(uuid, totals.get(uuid), self._gpus.show(uuid))
                for uuid in self._gpus.names()
            ],
            "" if self._latest.gpus else self._latest.gpu_reason,
        )
