"""Copies of a sequence model replace one another: open sequences stay with the copy that began
them, and a copy whose sequences have ended leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError
from naiad.instances.executor import StateObserver
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.model import Model, build_spec
from naiad.scheduling.batch_rule import BatchRule
from naiad.scheduling.sequence.controls import SequenceControls
from naiad.scheduling.sequence.implicit_state import ImplicitState
from naiad.scheduling.sequence.lane import DirectRule
from naiad.scheduling.sequence.sequence import SequencePlan, SequenceScheduler
from naiad.shm.arena import Arena
from tests.fakes import FakeClock, FakeInstance, fake_job

NUM_RELOADS = 1200
IDLE_NS = 1_000_000_000
PLAN = SequencePlan(
    "m",
    DirectRule(0, 0.0),
    2,
    IDLE_NS,
    BatchRule(2, frozenset({2})),
    SequenceControls(None, None, None, None, [1, 1]),
    ImplicitState([], frozenset()),
    ["OUTPUT0"],
)


class StoppableInstance(FakeInstance):
    """An instance as a Model sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stopped = False

    def add_state_observer(self, observer: StateObserver) -> None:
        pass

    async def stop(self, timeout_s: float) -> None:
        self.is_stopped = True


class Copy:
    """One copy of the model, with one instance of two slots."""

    def __init__(self, clock: FakeClock) -> None:
        config = ModelConfig(name="m")
        self.clock = clock
        self.instance = StoppableInstance()
        statistics = ModelStatistics("m", 1)
        scheduler = SequenceScheduler([self.instance], PLAN, clock, statistics)
        self.model = Model(
            build_spec(config, 1, [1], Path()),
            config,
            statistics,
            [self.instance],  # type: ignore[list-item]
            scheduler,
            Arena(),
        )
        self.instances = [self.instance]
        self.scheduler = weakref.ref(scheduler)

    @property
    def executed(self) -> list[str]:
        return [id for batch in self.instance.ids for id in batch if id]

    def replace(self, old: Copy) -> asyncio.Task[None]:
        """What a reload does. The task ends when the old copy has stopped."""
        self.model.take_over(old.model)
        return asyncio.ensure_future(old.model.stop(1.0))

    def send(self, id: str, sequence: int, *, start: bool = False, end: bool = False) -> None:
        """Sends one request to the copy that serves."""
        job = fake_job(id, sequence_id=sequence, sequence_start=start, sequence_end=end)
        self.model.scheduler.enqueue(job)
        self.clock.turn()


def finish(*copies: Copy) -> None:
    """Completes every batch that the instances of these copies are executing."""
    for copy in copies:
        for instance in copy.instances:
            while instance.running:
                instance.finish()
                copy.clock.turn()


async def test_over_a_thousand_reloads_leave_only_the_last_copy() -> None:
    clock = FakeClock()
    copy = Copy(clock)
    gone: list[weakref.ref[Any]] = []
    for number in range(NUM_RELOADS):
        copy.send(f"{number} start", number + 1, start=True)
        finish(copy)
        new = Copy(clock)
        stopping = new.replace(copy)
        new.send(f"{number} end", number + 1, end=True)
        finish(copy)
        assert copy.executed == [f"{number} start", f"{number} end"]
        await stopping
        assert copy.instance.is_stopped
        gone += [copy.scheduler, weakref.ref(copy.instance), weakref.ref(copy.model)]
        copy = new
    copy.send("last", 1, start=True, end=True)
    finish(copy)
    assert copy.executed == ["last"]
    del new, stopping
    gc.collect()
    assert [reference for reference in gone if reference() is not None] == []


async def test_a_sequence_outlives_several_reloads() -> None:
    """The second copy stops before the first one, whose sequence is still open."""
    clock = FakeClock()
    first, second, third = Copy(clock), Copy(clock), Copy(clock)
    first.send("a1", 1, start=True)
    finish(first)
    first_stopping = second.replace(first)
    second.send("b1", 2, start=True, end=True)
    finish(second)
    await third.replace(second)
    assert not first_stopping.done()
    third.send("a2", 1)
    third.send("c1", 3, start=True)
    finish(first, third)
    third.send("a3", 1, end=True)
    finish(first)
    await first_stopping
    assert first.executed == ["a1", "a2", "a3"]
    assert second.executed == ["b1"]
    assert third.executed == ["c1"]


async def test_an_idle_sequence_keeps_its_copy_until_it_times_out() -> None:
    clock = FakeClock()
    old, new = Copy(clock), Copy(clock)
    old.send("a1", 1, start=True)
    finish(old)
    stopping = new.replace(old)
    await asyncio.sleep(0)
    assert not stopping.done()
    clock.advance(IDLE_NS)
    await stopping
    with pytest.raises(NaiadError, match="must specify the START flag"):
        new.send("a2", 1)


async def test_a_sequence_that_is_started_again_continues_on_the_new_copy() -> None:
    clock = FakeClock()
    old, new = Copy(clock), Copy(clock)
    old.send("a1", 1, start=True)
    finish(old)
    stopping = new.replace(old)
    new.send("b1", 1, start=True)
    finish(new)
    new.send("b2", 1, end=True)
    finish(new)
    assert (old.executed, new.executed) == (["a1"], ["b1", "b2"])
    await stopping  # without waiting for the idle timeout of the sequence


async def test_a_sequence_that_is_started_again_first_executes_what_waits_in_the_old_copy() -> None:
    clock = FakeClock()
    old, new = Copy(clock), Copy(clock)
    old.send("a1", 1, start=True)
    stopping = new.replace(old)
    new.send("a2", 1)
    new.send("b1", 1, start=True)
    await asyncio.sleep(0)
    assert not stopping.done()
    finish(old, new)
    await stopping
    assert (old.executed, new.executed) == (["a1", "a2"], ["b1"])
    new.send("b2", 1, end=True)
    finish(new)
    assert new.executed == ["b1", "b2"]


async def test_a_rejected_start_does_not_end_the_sequence_of_the_old_copy() -> None:
    clock = FakeClock()
    old, new = Copy(clock), Copy(clock)
    old.send("a1", 1, start=True)
    finish(old)
    stopping = new.replace(old)
    job = fake_job("b1", batch_size=2, sequence_id=1, sequence_start=True)
    with pytest.raises(NaiadError, match="must specify batch-size 1"):
        new.model.scheduler.enqueue(job)
    new.send("a2", 1, end=True)
    finish(old)
    await stopping
    assert old.executed == ["a1", "a2"]


async def test_instances_can_be_added_and_removed_after_a_reload() -> None:
    clock = FakeClock()
    old, new = Copy(clock), Copy(clock)
    old.send("a1", 1, start=True)
    finish(old)
    stopping = new.replace(old)
    added = StoppableInstance()
    resizable = new.model.scheduler.resizable
    assert resizable is not None
    resizable.add_instance(added)
    new.instances.append(added)
    for number in (2, 3, 4, 5):
        new.send(str(number), number, start=True)
        finish(new)
    assert len(added.batches) == 2
    new.send("a2", 1, end=True)
    finish(old)
    await stopping
    assert old.executed == ["a1", "a2"]
    removing = asyncio.ensure_future(new.model.retire(new.instance, 1.0))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not removing.done()
    for number in (2, 3, 4, 5):
        new.send(f"{number} end", number, end=True)
        finish(new)
    await removing
    assert new.instance.is_stopped
