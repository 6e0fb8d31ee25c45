"""Reads the state of the machine every --metrics-interval-ms.

In:  psutil and NVML. Out: `latest`, which is replaced as a whole and read at scrape time.
A separate thread does the reading, because a driver may be slow.
"""

from __future__ import annotations

import threading

import msgspec

from naiad import log
from naiad.metrics.exposition import COUNTER, GAUGE, Block, label_text
from naiad.metrics.gpu import GpuReading, Gpus

NO_GPUS_READ = "the server reads no GPUs (--allow-metrics, --allow-gpu-metrics)"


class HostReading(msgspec.Struct, frozen=True):
    cpu_utilization: float | None = None
    """Utilization of all cores together since the previous reading, from 0 to 1."""
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpus: list[GpuReading] = []
    gpu_reason: str = NO_GPUS_READ
    """Why `gpus` is empty, for people."""


class HostSampler:
    """The thread that takes readings.

    `start` returns at once. `stop` waits for the thread, but not for a driver that hangs.
    """

    def __init__(self, *, has_cpu: bool, has_gpu: bool, interval_s: float) -> None:
        self.latest = HostReading()
        self._has_cpu = has_cpu
        self._gpus = Gpus() if has_gpu else None
        self._interval_s = interval_s
        self.has_read = threading.Event()
        """Set after the first reading."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._has_cpu or self._gpus is not None:
            self._thread = threading.Thread(
                target=self._run, name="naiad-host-metrics", daemon=True
            )
            self._thread.start()

    def stop(self, wait_s: float = 1.0) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(wait_s)
            self._thread = None

    def _run(self) -> None:
        if self._gpus is not None:
            self._gpus.open()
        has_failed = False
        while True:
            try:
                self.latest = self._read()
            except Exception as failure:
                # A container may hide /proc. The page has no metrics of the host then.
                if not has_failed:
                    log.warning(
                        f"cannot read the host's metrics: {type(failure).__name__}: {failure}"
                    )
                has_failed = True
            self.has_read.set()
            if self._stopped.wait(self._interval_s):
                break
        if self._gpus is not None:
            self._gpus.close()

    def _read(self) -> HostReading:
        gpus, reason = ([], NO_GPUS_READ) if self._gpus is None else self._read_gpus()
        if not self._has_cpu:
            return HostReading(gpus=gpus, gpu_reason=reason)
        import psutil  # loaded only if metrics are served

        memory = psutil.virtual_memory()
        utilization = psutil.cpu_percent(interval=None) / 100
        return HostReading(
            min(max(utilization, 0.0), 1.0),
            memory.total,
            memory.total - memory.available,
            gpus,
            reason,
        )

    def _read_gpus(self) -> tuple[list[GpuReading], str]:
        assert self._gpus is not None
        return self._gpus.read(), self._gpus.reason


_GPU_ROWS = [
    ("nv_gpu_utilization", GAUGE, "GPU utilization rate [0.0 - 1.0)", "utilization"),
    ("nv_gpu_memory_total_bytes", GAUGE, "GPU total memory, in bytes", "memory_total_bytes"),
    ("nv_gpu_memory_used_bytes", GAUGE, "GPU used memory, in bytes", "memory_used_bytes"),
    ("nv_gpu_power_usage", GAUGE, "GPU power usage in watts", "power_usage_w"),
    ("nv_gpu_power_limit", GAUGE, "GPU power management limit in watts", "power_limit_w"),
    (
        "nv_energy_consumption",
        COUNTER,
        "GPU energy consumption in joules since the Triton Server started",
        "energy_j",
    ),
]
_CPU_ROWS = [
    ("nv_cpu_utilization", GAUGE, "CPU utilization rate [0.0 - 1.0]", "cpu_utilization"),
    ("nv_cpu_memory_total_bytes", GAUGE, "CPU total memory (RAM), in bytes", "memory_total_bytes"),
    ("nv_cpu_memory_used_bytes", GAUGE, "CPU used memory (RAM), in bytes", "memory_used_bytes"),
]


def host_blocks(reading: HostReading) -> list[Block]:
    blocks = []
    for name, kind, help, field in _GPU_ROWS:
        block = Block(name, kind, help)
        for gpu in reading.gpus:
            if (value := getattr(gpu, field)) is not None:
                block.add(label_text({"gpu_uuid": gpu.uuid}), value)
        blocks.append(block)
    for name, kind, help, field in _CPU_ROWS:
        block = Block(name, kind, help)
        if (value := getattr(reading, field)) is not None:
            block.add("", value)
        blocks.append(block)
    return blocks
