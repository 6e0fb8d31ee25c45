from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from naiad.core.clock import LoopClock
from naiad.errors import Code, NaiadError
from naiad.instances.template_process import Templates
from naiad.ipc.work import LoadArguments
from naiad.metrics.gpu_memory import GpuMemory
from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.load.gpu_limit import GpuLimits
from naiad.repository.load.loader import Loader, LoadOptions
from naiad.settings.compound import DeviceFraction
from tests.fakes import FakeServices

MESSAGE = (
    "can not create model 'm_0': memory limit set for GPU 1 has exceeded, model loading is "
    "rejected."
)


def on_gpu(device: int, kind: str = "GPU") -> LoadArguments:
    return LoadArguments("m", 1, "/nowhere", "m_0", kind, device, b"{}")


class Reader:
    """Returns the memory usage that the test has set."""

    def __init__(self, *used_bytes: int) -> None:
        self.used_bytes = list(used_bytes)
        self.asked: list[int] = []

    def read(self, device: int) -> GpuMemory | None:
        self.asked.append(device)
        return GpuMemory(self.used_bytes[device], 1000) if device < len(self.used_bytes) else None


async def test_an_instance_that_exceeds_the_limit_is_refused_with_tritons_message() -> None:
    limits = GpuLimits([DeviceFraction(1, 0.5), DeviceFraction(1, 1.0)], Reader(1000, 501).read)
    with pytest.raises(NaiadError) as refused:
        await limits.check(on_gpu(1))
    assert (refused.value.code, refused.value.message) == (Code.UNAVAILABLE, MESSAGE)


async def test_usage_equal_to_the_limit_is_allowed() -> None:
    await GpuLimits([DeviceFraction(1, 0.5)], Reader(1000, 500).read).check(on_gpu(1))


@pytest.mark.parametrize("arguments", [on_gpu(0), on_gpu(1, "CPU"), on_gpu(1, "MODEL")])
async def test_memory_is_not_read_without_a_limit(arguments: LoadArguments) -> None:
    reader = Reader(1000, 1000)
    await GpuLimits([DeviceFraction(1, 0.5)], reader.read).check(arguments)
    assert reader.asked == []


async def test_a_limit_that_cannot_be_checked_rejects_the_model() -> None:
    with pytest.raises(
        NaiadError,
        match=r"memory limit set for GPU 1 cannot be checked: .*\(is nvidia-ml-py installed",
    ) as refused:
        await GpuLimits([DeviceFraction(1, 1.0)], Reader().read).check(on_gpu(1))
    assert refused.value.code is Code.UNAVAILABLE


@pytest.fixture
async def templates() -> AsyncIterator[Templates]:
    templates = Templates(asyncio.get_running_loop())
    yield templates
    templates.close()


def loader(templates: Templates, reader: Reader) -> Loader:
    options = LoadOptions(gpu_limits=GpuLimits([DeviceFraction(1, 0.5)], reader.read))
    return Loader(LoopClock(asyncio.get_running_loop()), templates, FakeServices(), options)


def config() -> ModelConfig:
    group = ModelInstanceGroup(name="m", kind=ModelInstanceGroup.KIND_GPU, count=1, gpus=[1])
    return ModelConfig(name="m", backend="identity", instance_group=[group])


async def test_memory_is_checked_after_a_model_has_started(
    templates: Templates, tmp_path: Path
) -> None:
    reader = Reader(0, 501)
    with pytest.raises(NaiadError, match="has exceeded, model loading is rejected"):
        await loader(templates, reader).start_copy(config(), 1, [1], tmp_path)
    assert reader.asked == [1]


async def test_memory_is_checked_after_a_resize(templates: Templates, tmp_path: Path) -> None:
    reader = Reader(0, 100)
    starter = loader(templates, reader)
    model = await starter.start_copy(config(), 1, [1], tmp_path)
    reader.used_bytes[1] = 600
    wanted = config().instance_group[0]
    wanted.count = 2
    with pytest.raises(
        NaiadError, match="can not create model 'm_1': memory limit set for GPU 1 has exceeded"
    ):
        await starter.resize(model, [wanted], tmp_path)
    assert [instance.name for instance in model.instances] == ["m_0"]
    assert reader.asked == [1, 1]
    for instance in model.instances:
        await instance.stop(5)
    model.arena.close()
