import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from naiad import log
from naiad.metrics.exposition import page
from naiad.metrics.gpu import Gpus
from naiad.metrics.host import HostReading, HostSampler, host_blocks
from tests.unit.metrics.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


@pytest.fixture
def sampler() -> Iterator[HostSampler]:
    sampler = HostSampler(has_cpu=True, has_gpu=True, interval_s=3600)
    yield sampler
    sampler.stop(60)


def lines(reading: HostReading) -> list[str]:
    return [
        line
        for line in page(host_blocks(reading)).decode().splitlines()
        if not line.startswith("#")
    ]


def threads_of_samplers(before: set[threading.Thread]) -> list[threading.Thread]:
    """Returns the sampler threads started since `before`; those of earlier tests may be ending."""
    return [
        thread
        for thread in threading.enumerate()
        if thread.name == "naiad-host-metrics" and thread not in before
    ]


def test_gpu_readings(nvml: FakeNvml, sampler: HostSampler) -> None:
    gpus = Gpus()
    gpus.open()
    nvml.energy_mj += 2_500
    assert lines(HostReading(gpus=gpus.read())) == [
        'nv_energy_consumption{gpu_uuid="GPU-0"} 2.5',
        'nv_gpu_utilization{gpu_uuid="GPU-0"} 0.41',
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.41',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"} 1000',
        'nv_gpu_memory_total_bytes{gpu_uuid="GPU-1"} 1000',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 400',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"} 400',
        'nv_gpu_power_usage{gpu_uuid="GPU-0"} 81.619',
        'nv_gpu_power_limit{gpu_uuid="GPU-0"} 250',
    ]
    gpus.close()
    assert nvml.is_closed


def test_a_driver_that_fails_means_no_gpus(nvml: FakeNvml) -> None:
    nvml.is_broken = True
    gpus = Gpus()
    gpus.open()
    assert gpus.read() == []
    gpus.close()


def test_no_library_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    gpus.open()
    assert gpus.read() == []
    gpus.close()


def test_readings_of_this_machine(sampler: HostSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler.start()
    assert sampler.has_read.wait(60)
    reading = sampler.latest
    assert reading.cpu_utilization is not None
    assert 0 <= reading.cpu_utilization <= 1
    assert reading.memory_total_bytes == psutil.virtual_memory().total
    assert reading.memory_used_bytes is not None
    assert 0 < reading.memory_used_bytes < reading.memory_total_bytes
    assert [line.split()[0] for line in lines(reading)] == [
        "nv_cpu_utilization",
        "nv_cpu_memory_total_bytes",
        "nv_cpu_memory_used_bytes",
    ]


def test_stop_ends_the_thread_and_nvml(nvml: FakeNvml, sampler: HostSampler) -> None:
    before = set(threading.enumerate())
    sampler.start()
    assert sampler.has_read.wait(60)
    sampler.stop(60)
    assert not threads_of_samplers(before)
    assert nvml.is_closed


def test_starts_no_thread_if_there_is_nothing_to_read() -> None:
    before = set(threading.enumerate())
    sampler = HostSampler(has_cpu=False, has_gpu=False, interval_s=1)
    sampler.start()
    assert not threads_of_samplers(before)
    sampler.stop()
    assert lines(sampler.latest) == []


def test_keeps_reading_after_failures(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    recovered = threading.Event()
    memory = psutil.virtual_memory()
    calls = 0

    def flaky() -> Any:
        nonlocal calls
        calls += 1
        if calls <= 2:
            raise PermissionError("hidden")
        if calls == 4:
            recovered.set()
        return memory

    monkeypatch.setattr(psutil, "virtual_memory", flaky)
    sampler = HostSampler(has_cpu=True, has_gpu=False, interval_s=0.001)
    sampler.start()
    assert recovered.wait(60)
    sampler.stop(60)
    assert sampler.latest.memory_total_bytes == memory.total
    assert log.flush(60)
    assert (
        capfd.readouterr().err.count("cannot read the host's metrics: PermissionError: hidden") == 1
    )
