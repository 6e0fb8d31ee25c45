"""A fake of NVIDIA's library, with the calls that naiad.metrics.gpu uses."""

from __future__ import annotations

import types
from typing import Any


class NVMLError(Exception):
    pass


class FakeNvml(types.ModuleType):
    """Two GPUs. The second reports neither its power nor its energy."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.energy_mj = 1_000_000
        self.is_broken = False
        self.is_closed = False

    def nvmlInit(self) -> None:  # noqa: N802
        if self.is_broken:
            raise NVMLError("no driver")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_closed = True

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> Any:  # noqa: N802
        return "GPU-0" if handle == 0 else b"GPU-1"

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(gpu=41, memory=3)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(total=1000, used=400, free=600)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return self._first_only(handle, 81_619)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:  # noqa: N802
        return self._first_only(handle, 250_000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        return self._first_only(handle, self.energy_mj)

    def _first_only(self, handle: int, value: int) -> int:
        if handle:
            raise NVMLError("Not Supported")
        return value
