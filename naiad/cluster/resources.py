"""What a replica needs of a machine, and what a machine has: cores, GPUs and memory."""

from __future__ import annotations

import msgspec

GPU_STEP = 1e-6
"""Shares of a GPU are sums of decimal fractions, which floats cannot add exactly."""


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: int = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            cpus=self.cpus + other.cpus,
            gpus=self.gpus + other.gpus,
            memory_bytes=self.memory_bytes + other.memory_bytes,
        )

    def __sub__(self, other: Resources) -> Resources:
        return Resources(
            cpus=self.cpus - other.cpus,
            gpus=self.gpus - other.gpus,
            memory_bytes=self.memory_bytes - other.memory_bytes,
        )

    def missing_in(self, free: Resources) -> str:
        """Returns what `free` lacks, in words; empty if it is enough."""
        lacks = []
        if self.gpus > free.gpus + GPU_STEP:
            lacks.append(f"needs {self.gpus:g} GPUs, has {max(free.gpus, 0):g} free")
        if self.cpus > free.cpus + GPU_STEP:
            lacks.append(f"needs {self.cpus:g} CPUs, has {max(free.cpus, 0):g} free")
        if self.memory_bytes > free.memory_bytes:
            lacks.append(
                f"needs {readable_bytes(self.memory_bytes)} of memory, "
                f"has {readable_bytes(max(free.memory_bytes, 0))} free"
            )
        return ", ".join(lacks)


def readable_bytes(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
