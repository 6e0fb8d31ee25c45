from __future__ import annotations

import sys

import pytest

from naiad.metrics.gpu_memory import GpuMemory, read_gpu_memory, visible_gpus
from tests.unit.metrics.fake_nvml import FakeNvml

GPUS = ["GPU-10", "GPU-11", "GPU-2"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, GPUS),
        ("2,0", ["GPU-2", "GPU-10"]),
        (" 1 , 2", ["GPU-11", "GPU-2"]),
        ("GPU-2,1", ["GPU-2", "GPU-11"]),
        ("GPU-1", []),
        ("0,9,1", ["GPU-10"]),
        ("0,-1,1", ["GPU-10"]),
        ("0,0", ["GPU-10"]),
        ("", []),
        ("MIG-5", []),
    ],
)
def test_numbers_refer_to_visible_gpus(visible: str | None, expected: list[str]) -> None:
    assert visible_gpus(GPUS, visible) == expected


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [
        (0, {}, GpuMemory(400, 1000)),
        (1, {}, GpuMemory(400, 1000)),
        (2, {}, None),
        (-1, {}, None),
        (1, {"CUDA_VISIBLE_DEVICES": "1"}, None),
    ],
)
def test_reads_the_memory_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    device: int,
    visible: dict[str, str],
    expected: GpuMemory | None,
) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpu_memory(device, visible) == expected
    assert nvml.is_closed


def test_returns_none_without_a_driver_or_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    nvml.is_broken = True
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpu_memory(0, {}) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu_memory(0, {}) is None
