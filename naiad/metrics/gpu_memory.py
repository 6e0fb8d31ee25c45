"""Reads how much memory of a GPU is in use.

A GPU is given by its number in instance groups: 0 is the first GPU that CUDA_VISIBLE_DEVICES makes
visible. Calls may block in the driver, so they are never made on the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from naiad.metrics.gpu import Gpus


class GpuMemory(msgspec.Struct, frozen=True):
    used_bytes: int
    total_bytes: int


def read_gpu_memory(device: int, environ: Mapping[str, str] = os.environ) -> GpuMemory | None:
    """Returns None if there is no such GPU, no driver, or the `gpu` extra is not installed."""
    gpus = Gpus()
    gpus.open()
    try:
        readings = {reading.uuid: reading for reading in gpus.read()}
    finally:
        gpus.close()
    visible = visible_gpus(list(readings), environ.get("CUDA_VISIBLE_DEVICES"))
    if not 0 <= device < len(visible):
        return None
    reading = readings[visible[device]]
    if reading.memory_used_bytes is None or reading.memory_total_bytes is None:
        return None
    return GpuMemory(reading.memory_used_bytes, reading.memory_total_bytes)


def visible_gpus(uuids: Sequence[str], visible: str | None) -> list[str]:
    """Returns the UUIDs of the GPUs that `visible`, the value of CUDA_VISIBLE_DEVICES, selects.

    An entry is a number or a unique prefix of a UUID. Like CUDA, it ignores an entry that selects
    no GPU and all entries after it.
    """
    if visible is None:
        return list(uuids)
    selected: list[str] = []
    for entry in (entry.strip() for entry in visible.split(",")):
        if entry.isdigit():
            matching = list(uuids[int(entry) : int(entry) + 1])
        else:
            matching = [
                uuid for uuid in uuids if entry.startswith("GPU-") and uuid.startswith(entry)
            ]
        if len(matching) != 1 or matching[0] in selected:
            break
        selected += matching
    return selected
