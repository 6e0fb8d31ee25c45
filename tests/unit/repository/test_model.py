"""A copy of a model: how it stops, and whom it asks whether it is ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from naiad.core.statistics import ModelStatistics
from naiad.errors import internal
from naiad.instances.executor import StateObserver
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model, build_spec
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.dynamic import DynamicScheduler
from naiad.shm.arena import Arena
from tests.fakes import FakeClock, FakeInstance


class ModelInstance(FakeInstance):
    """An instance as a Model sees it."""

    name = "model_0"

    def __init__(self, error: Exception | None = None, *, has_ready_hook: bool = False) -> None:
        super().__init__()
        self.error = error
        self.is_stopped = False
        self.has_ready_hook = has_ready_hook
        self.is_healthy = True
        self.askers: list[Callable[[bool], None]] = []

    def add_state_observer(self, observer: StateObserver) -> None:
        pass

    def ask_ready(self, on_readiness: Callable[[bool], None]) -> None:
        self.askers.append(on_readiness)

    async def stop(self, timeout_s: float) -> None:
        if self.error is not None:
            raise self.error
        self.is_stopped = True


class ClosableArena(Arena):
    is_closed = False

    def close(self) -> None:
        self.is_closed = True
        super().close()


def make_model(*instances: ModelInstance) -> Model:
    config, statistics = ModelConfig(name="m"), ModelStatistics("m", 1)
    scheduler = DynamicScheduler(instances, BatchRule(1), FakeClock(), statistics)
    listed: list[Any] = list(instances)
    spec = build_spec(config, 1, [1], Path())
    return Model(spec, config, statistics, listed, scheduler, ClosableArena())


@pytest.mark.parametrize("is_killed", [False, True])
async def test_an_instance_that_fails_to_stop_does_not_keep_the_model_open(
    is_killed: bool,
) -> None:
    bad, good = ModelInstance(internal("cannot stop")), ModelInstance()
    model = make_model(bad, good)
    called: list[str] = []
    model.on_stopped.append(lambda: called.append("stopped"))
    with pytest.raises(Exception, match="cannot stop"):
        await (model.kill() if is_killed else model.stop(1.0))
    assert good.is_stopped
    assert called == ["stopped"]
    assert isinstance(model.arena, ClosableArena)
    assert model.arena.is_closed


def test_every_instance_with_a_hook_must_say_that_it_is_ready() -> None:
    instances = [ModelInstance(has_ready_hook=True) for _ in range(3)]
    instances[2].is_serving = False
    model = make_model(*instances, ModelInstance())
    replies: list[bool] = []
    model.ask_ready(replies.append)
    instances[0].askers.pop()(True)
    assert replies == []
    instances[1].askers.pop()(True)
    assert replies == [True]
    assert not instances[2].askers, "an instance that restarts is not asked"
    model.ask_ready(replies.append)
    instances[1].askers.pop()(False)
    assert replies == [True, False]


def test_without_a_hook_the_workers_decide() -> None:
    instance = ModelInstance()
    model = make_model(instance)
    replies: list[bool] = []
    model.ask_ready(replies.append)
    instance.is_healthy = False
    model.ask_ready(replies.append)
    assert replies == [True, False]


def test_a_model_without_a_healthy_instance_is_not_asked() -> None:
    instance = ModelInstance(has_ready_hook=True)
    instance.is_healthy = False
    replies: list[bool] = []
    make_model(instance).ask_ready(replies.append)
    assert (replies, instance.askers) == ([False], [])
