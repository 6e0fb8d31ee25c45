"""`--model-load-gpu-limit`: rejects an instance if too much of a GPU's memory is in use after it
has loaded.

As in Triton, the memory is checked after the instance has loaded, because its size is not known
before. Memory that other programs use counts too. If the memory cannot be read, the instance is
rejected, because the operator relies on the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from naiad.errors import unavailable
from naiad.ipc.work import LoadArguments
from naiad.metrics.gpu_memory import GpuMemory, read_gpu_memory
from naiad.settings.compound import DeviceFraction


class GpuLimits:
    def __init__(
        self,
        limits: Iterable[DeviceFraction] = (),
        read: Callable[[int], GpuMemory | None] = read_gpu_memory,
    ) -> None:
        """`read` may block."""
        self._read = read
        self._fractions: dict[int, float] = {}
        for limit in limits:
            self._fractions.setdefault(limit.device, limit.fraction)

    async def check(self, arguments: LoadArguments) -> None:
        """Raises NaiadError. `arguments` are those of an instance that has loaded."""
        device = arguments.device_id
        if arguments.instance_kind != "GPU" or device not in self._fractions:
            return
        memory = await asyncio.to_thread(self._read, device)
        refusal = (
            f"can not create model '{arguments.instance_name}': memory limit set for GPU {device} "
        )
        if memory is None:
            raise unavailable(
                refusal
                + "cannot be checked: its memory cannot be read (is nvidia-ml-py installed?)"
            )
        if memory.used_bytes > int(memory.total_bytes * self._fractions[device]):
            raise unavailable(refusal + "has exceeded, model loading is rejected.")
