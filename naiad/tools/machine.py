"""Describes the machine that a report was made on: processor, cores, memory, GPUs and system."""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
from pathlib import Path
from typing import Any

import psutil


def machine_text() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    parts = [_processor(), f"{_num_cores()} cores", f"{memory_gib:.0f} GiB", *_gpus()]
    parts.append(f"{platform.system()} {platform.release()}, Python {platform.python_version()}")
    return ", ".join(parts)


def _num_cores() -> int:
    with contextlib.suppress(AttributeError):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return []
    try:
        names = [
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(nvml.nvmlDeviceGetCount())
        ]
        return [name if isinstance(name, str) else name.decode() for name in names]
    except Exception:
        return []
    finally:
        nvml.nvmlShutdown()
