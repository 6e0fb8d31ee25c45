"""`--model-load-gpu-limit`: an instance that leaves more of a GPU's memory in use than its share is
                          refused.

Looked at when the instance has loaded, as Triton does: looked at before, it could still take all
the rest. Whatever else uses the GPU counts, too. A limit that cannot be checked is kept by
refusing: whoever sets one relies on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from naiad.core.work import LoadArguments
from naiad.errors import unavailable
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
        """Raises NaiadError. `arguments` are those of an instance that has been loaded."""
        device = arguments.device_id
        if arguments.instance_kind != "GPU" or device not in self._fractions:
            return
        memory = await asyncio.to_thread(self._read, device)
        refusal = (
            f"can not create model '{arguments.instance_name}': memory limit set for GPU {device} "
        )
        if memory is None:
            raise unavailable(
                refusal + "cannot be checked: its memory cannot be read (is naiad[gpu] installed?)"
            )
        if memory.used_bytes > int(memory.total_bytes * self._fractions[device]):
            raise unavailable(refusal + "has exceeded, model loading is rejected.")
