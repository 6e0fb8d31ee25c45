"""Reads the state of the GPUs through NVML, if the `gpu` extra is installed.

Rule: without a GPU, the library or a working driver there are no readings, and that is not an
      error. Calls may block in the driver, so they are never made on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from naiad.core.install_advice import install_command


class GpuReading(msgspec.Struct, frozen=True):
    """The state of one GPU. A field is None if the GPU does not report it."""

    uuid: str
    utilization: float | None
    """From 0 to 1."""
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    power_usage_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    """Energy used since the server started."""


class Gpus:
    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._start_energy_mj: dict[str, int | None] = {}
        self.reason = ""
        """Why there are no readings, for people."""

    def open(self) -> None:
        try:
            # The library is optional, and importing it is slow.
            import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            self.reason = f"nvidia-ml-py is not installed: {install_command('gpu')}"
            return
        try:
            pynvml.nvmlInit()
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._handles[_text(pynvml.nvmlDeviceGetUUID(handle))] = handle
        except pynvml.NVMLError as error:
            self.reason = f"NVML finds no driver or GPU: {error}"
        else:
            self.reason = "" if self._handles else "NVML finds no GPU"
        self._nvml = pynvml
        self._start_energy_mj = {
            uuid: self._energy_mj(handle) for uuid, handle in self._handles.items()
        }

    def close(self) -> None:
        if self._nvml is not None:
            self._read_value(self._nvml.nvmlShutdown)
            self._nvml, self._handles = None, {}

    def read(self) -> list[GpuReading]:
        return [self._read_one(uuid, handle) for uuid, handle in self._handles.items()]

    def _read_one(self, uuid: str, handle: Any) -> GpuReading:
        nvml = self._nvml
        utilization = self._read_value(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._read_value(nvml.nvmlDeviceGetMemoryInfo, handle)
        usage_mw = self._read_value(nvml.nvmlDeviceGetPowerUsage, handle)
        limit_mw = self._read_value(nvml.nvmlDeviceGetPowerManagementLimit, handle)
        energy_mj, start_mj = self._energy_mj(handle), self._start_energy_mj[uuid]
        return GpuReading(
            uuid,
            None if utilization is None else utilization.gpu / 100,
            None if memory is None else memory.total,
            None if memory is None else memory.used,
            None if usage_mw is None else usage_mw / 1000,
            None if limit_mw is None else limit_mw / 1000,
            None if energy_mj is None or start_mj is None else (energy_mj - start_mj) / 1000,
        )

    def _energy_mj(self, handle: Any) -> int | None:
        call = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        energy: int | None = self._read_value(call, handle)
        return energy

    def _read_value(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns None if the call fails."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
