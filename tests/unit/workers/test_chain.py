"""Chains of instances with real worker processes: what the server keeps of a batch that goes from worker to worker."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from naiad.core.request import InferRequest
from naiad.core.statistics import BatchTimes
from naiad.core.tensor_form import TensorForm
from naiad.errors import NaiadError
from naiad.workers.chain import LOST, MAX_STEP_NS, MAX_UNFIT, STUCK_NS, Chain, Follower
from naiad.workers.instance import Instance
from naiad.workers.lease import IDLE_HEARTBEATS
from naiad.workers.messages import Cancel, Ping, Pong
from naiad.workers.template_process import Templates
from tests.unit.workers.identity_instance import make_instance, request

FORM = TensorForm([("OUTPUT0", "FP32", [1, 2], 8)], ["INPUT0"], None, 1)


class Step:
    """Stands for an ensemble's relay: no batch goes on by it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def take(self, requests: Any, responses: Any, times: Any) -> bool:
        return False


class Place:
    """Where a request stands."""

    def __init__(self, relay: Step) -> None:
        self.relay: Any = relay


class Row:
    """Three instances, one after the other."""

    def __init__(self, instances: list[Instance]) -> None:
        self.instances = instances
        self.steps = [Step(number) for number in range(3)]
        self.over: list[Chain] = []
        self.advanced: list[tuple[int, int]] = []
        self.chain = self.form()

    def form(self) -> Chain:
        followers = [
            Follower(instance, FORM, ["OUTPUT0"], step, lambda requests, size, times, step=step: self.advance(step, requests, times))
            for instance, step in zip(self.instances[1:], self.steps[1:], strict=True)
        ]
        chain = Chain(self.instances[0], self.steps[0], followers, 4, self.over.append)
        assert chain.start()
        return chain

    def advance(self, step: Step, requests: list[InferRequest], times: BatchTimes) -> None:
        self.advanced.append((step.number, len(requests)))
        for one in requests:
            assert isinstance(one.part, Place)
            one.part.relay = step

    def ask(self, *values: float) -> InferRequest:
        one = request(np.array([values], np.float32))
        one.part = Place(self.steps[0])
        return one

    def execute(self, *requests: InferRequest) -> list[asyncio.Task[Any]]:
        self.instances[0].execute(list(requests))
        return [asyncio.ensure_future(one.stream.single()) for one in requests if one.stream is not None]

    async def answers(self, *requests: InferRequest) -> list[list[float]]:
        return [(await task).outputs[0].as_numpy()[0].tolist() for task in self.execute(*requests)]

    async def until_over(self) -> None:
        free = asyncio.Event()
        for instance in self.instances:
            instance.on_free = lambda _: free.set()
        async with asyncio.timeout(60):
            while not self.over:
                free.clear()
                await free.wait()

    async def until_passed(self, *instances: Instance) -> None:
        """These workers, or the first one, have executed all that they had."""
        for instance in instances or self.instances[:1]:
            pong = asyncio.Event()
            assert instance.process is not None
            take = instance.process.on_message

            def look(message: Any, take: Any = take, pong: asyncio.Event = pong) -> None:
                take(message)
                if isinstance(message, Pong):
                    pong.set()

            instance.process.on_message = look
            instance.linking.send(Ping(1 << 30))
            await asyncio.wait_for(pong.wait(), 60)


@pytest.fixture
async def row(templates: Templates) -> AsyncIterator[Row]:
    instances = [make_instance(templates) for _ in range(3)]
    for instance in instances:
        await instance.load()  # one by one: those that are forked together hold each other's sockets
        instance.is_lendable = True
        assert instance.may_lead
        assert instance.may_follow
    yield Row(instances)
    for instance in instances:
        await instance.stop(5)


def counts(row: Row) -> list[tuple[int, int, int]]:
    found = [instance._statistics for instance in row.instances]
    return [(one.execution_count, one.success.count, one.fail.count) for one in found]


async def test_a_batch_goes_all_the_way_and_is_counted_at_every_step(row: Row) -> None:
    assert await row.answers(row.ask(1, 2), row.ask(3, 4)) == [[1, 2], [3, 4]]
    assert row.advanced == [(1, 2), (2, 2)]
    assert counts(row) == [(1, 2, 0)] * 3
    assert [instance.num_batches for instance in row.instances] == [0, 0, 0]
    assert [instance.inflight for instance in row.instances] == [0, 0, 0]


async def test_who_is_in_a_chain_is_in_no_other_and_lent_to_nobody(row: Row) -> None:
    first, second, _ = row.instances
    assert first.is_free
    assert not second.is_free
    for instance in row.instances:
        assert not instance.may_lead
        assert not instance.may_follow
        assert not instance.may_borrow
        assert instance.lend(1, lambda: True, lambda lease: None) is None


async def test_as_many_batches_as_the_chain_takes(row: Row) -> None:
    first, second, _ = row.instances
    os.kill(second.pid, signal.SIGSTOP)
    tasks = []
    while first.is_free:
        tasks += row.execute(row.ask(len(tasks), 0))
    assert len(tasks) == row.chain.max_batches >= 2
    os.kill(second.pid, signal.SIGCONT)
    assert [(await task).outputs[0].as_numpy()[0][0] for task in tasks] == list(range(len(tasks)))
    assert first.is_free


async def test_what_is_not_of_its_form_stops_where_it_is(row: Row) -> None:
    assert await row.answers(row.ask(1, 2, 3)) == [[1, 2, 3]]
    assert row.advanced == []
    assert counts(row) == [(1, 1, 0), (0, 0, 0), (0, 0, 0)]
    for _ in range(MAX_UNFIT):
        await row.answers(row.ask(1, 2, 3))
    await row.until_over()
    assert row.chain.is_wanted
    assert all(instance.is_free for instance in row.instances)


async def test_requests_of_others_and_too_many_of_them_do_not_go_on(row: Row) -> None:
    stranger = request(np.array([[1, 2]], np.float32))
    assert await row.answers(row.ask(1, 2), stranger) == [[1, 2], [1, 2]]
    assert await row.answers(*(row.ask(1, 2) for _ in range(5))) == [[1, 2]] * 5
    assert row.advanced == []
    assert row.instances[1].goes_with(stranger) is False
    stranger.part = Place(row.steps[1])
    assert row.instances[1].goes_with(stranger)


@pytest.mark.parametrize("slow", [0, 1, 2])
async def test_one_whose_steps_are_slow_is_given_back(row: Row, slow: int) -> None:
    for number in range(MAX_UNFIT + 2):
        took_ns = [0, 0, 0]
        took_ns[slow] = MAX_STEP_NS + (number > 0)
        assert not row.chain.is_recalled
        row.chain.look_at([(0, leg_ns, leg_ns) for leg_ns in took_ns[:2]], took_ns[2])
    assert row.chain.is_recalled
    assert row.chain.is_wanted
    await row.until_over()


async def test_the_time_of_the_last_step_is_looked_at_as_well(row: Row) -> None:
    seen: list[tuple[int, int]] = []
    row.chain.look_at = lambda legs, took_ns: seen.append((len(legs), took_ns))  # type: ignore[method-assign]
    await row.answers(row.ask(1, 2))
    ((num_legs, took_ns),) = seen
    assert num_legs == 2
    assert took_ns > 0


@pytest.mark.parametrize("wanted", [0, 1, 2])
async def test_recalled_it_ends_when_all_have_done_what_they_had(row: Row, wanted: int) -> None:
    tasks = row.execute(row.ask(1, 2))
    row.instances[wanted].recall(is_wanted=True)
    await row.until_over()
    assert row.chain.is_wanted
    assert (await tasks[0]).outputs[0].as_numpy()[0].tolist() == [1, 2]
    assert all(instance.is_free for instance in row.instances)
    assert [instance.num_batches for instance in row.instances] == [0, 0, 0]
    row.over.clear()
    row.chain = row.form()
    assert await row.answers(row.ask(5, 6)) == [[5, 6]]
    assert row.advanced[-2:] == [(1, 1), (2, 1)]


async def test_who_waits_and_goes_the_same_way_does_not_end_it(row: Row) -> None:
    row.instances[0].recall_for(row.ask(1, 2))
    assert not row.chain.is_recalled
    row.instances[0].recall_for(request(np.array([[1, 2]], np.float32)))
    assert row.chain.is_recalled
    await row.until_over()


@pytest.mark.parametrize("dead", [0, 1, 2])
async def test_a_process_that_ends_fails_all_that_is_under_way_at_once(row: Row, dead: int) -> None:
    os.kill(row.instances[1].pid, signal.SIGSTOP)
    tasks = row.execute(row.ask(1, 2), row.ask(3, 4))
    await row.until_passed()
    os.kill(row.instances[dead].pid, signal.SIGKILL)
    for task in tasks:
        with pytest.raises(NaiadError, match="its worker process ended"):
            await asyncio.wait_for(task, 60)
    if dead != 1:
        os.kill(row.instances[1].pid, signal.SIGCONT)
    await row.until_over()
    assert counts(row)[dead][2] == 2
    assert sum(fail for _, _, fail in counts(row)) == 2
    assert [instance.num_batches for instance in row.instances] == [0, 0, 0]
    assert [instance.inflight for instance in row.instances] == [0, 0, 0]


async def test_the_first_one_is_free_again_though_another_does_not_go_on(row: Row) -> None:
    first, second, _ = row.instances
    os.kill(second.pid, signal.SIGSTOP)
    tasks = []
    while first.is_free:
        tasks += row.execute(row.ask(1, 2))
    await row.until_passed()
    start_ns = first.work.batches[next(iter(first.work.batches))].compute_start_ns
    free = asyncio.Event()
    first.on_free = lambda _: free.set()
    first.heartbeat(start_ns + STUCK_NS)
    assert not row.chain.is_recalled
    first.heartbeat(start_ns + 2 * STUCK_NS)
    assert row.chain.is_recalled
    await asyncio.wait_for(free.wait(), 60)
    assert first.is_free
    assert first.inflight == len(tasks)
    os.kill(second.pid, signal.SIGCONT)
    for task in tasks:
        assert (await asyncio.wait_for(task, 60)).outputs[0].as_numpy()[0].tolist() == [1, 2]
    await row.until_over()
    assert [instance.num_batches for instance in row.instances] == [0, 0, 0]


async def test_one_that_is_not_used_is_given_back(row: Row) -> None:
    await row.answers(row.ask(1, 2))
    for beat in range(IDLE_HEARTBEATS + 1):
        assert not row.chain.is_recalled
        row.instances[0].heartbeat(beat)
    assert row.chain.is_recalled
    await row.until_over()
    assert not row.chain.is_wanted


async def test_a_cancelled_request_is_abandoned_and_the_batch_goes_on(row: Row) -> None:
    second = row.instances[1]
    os.kill(second.pid, signal.SIGSTOP)
    gone, stays = row.ask(1, 2), row.ask(3, 4)
    tasks = row.execute(gone, stays)
    await row.until_passed()
    assert gone.stream is not None
    gone.stream.cancel()
    assert row.instances[0].inflight == 1
    os.kill(second.pid, signal.SIGCONT)
    assert (await tasks[1]).outputs[0].as_numpy()[0].tolist() == [3, 4]
    assert [instance.inflight for instance in row.instances] == [0, 0, 0]
    tasks[0].cancel()


@pytest.mark.parametrize("dead", [0, 1, 2])
async def test_one_that_turns_out_to_be_gone_while_it_is_formed_ends_it(row: Row, dead: int) -> None:
    row.chain.recall(is_wanted=False)
    await row.until_over()
    row.over.clear()
    before = [descriptors(instance) for instance in row.instances]
    kill_and_wait(row.instances[dead].pid)
    row.chain = row.form()
    await row.until_over()
    await row.until_passed(*(instance for instance in row.instances if instance.is_serving))
    for number, instance in enumerate(row.instances):
        assert instance.lease is None
        assert instance.chain is None
        if number != dead:
            assert instance.is_free
            assert descriptors(instance) == before[number]


async def test_it_is_formed_with_the_last_descriptors(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    row.chain.recall(is_wanted=False)
    await row.until_over()

    def no_more(fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", no_more)
    row.chain = row.form()
    assert await row.answers(row.ask(5, 6)) == [[5, 6]]
    assert row.advanced == [(1, 1), (2, 1)]


async def test_it_is_formed_though_a_worker_does_not_read_for_a_while(row: Row) -> None:
    row.chain.recall(is_wanted=False)
    await row.until_over()
    third = row.instances[2]
    assert third.process is not None
    os.kill(third.pid, signal.SIGSTOP)
    while not third.process.channel._waiting:
        third.linking.send(Cancel([1] * 1000))
    row.chain = row.form()
    tasks = row.execute(row.ask(5, 6))
    await row.until_passed(*row.instances[:2])
    os.kill(third.pid, signal.SIGCONT)
    assert (await asyncio.wait_for(tasks[0], 60)).outputs[0].as_numpy()[0].tolist() == [5, 6]
    assert row.advanced == [(1, 1), (2, 1)]


async def test_the_scheduler_hears_of_what_was_lost_on_the_way(row: Row) -> None:
    first, second, _ = row.instances
    os.kill(second.pid, signal.SIGSTOP)
    (task,) = row.execute(row.ask(1, 2))
    await row.until_passed()
    idle: list[int] = []
    first.on_idle = lambda _: idle.append(first.inflight)
    second.linking.move = lambda number, way, took_ns=0: None  # type: ignore[method-assign]
    row.chain.recall(is_wanted=False)
    os.kill(second.pid, signal.SIGCONT)
    with pytest.raises(NaiadError, match=LOST):
        await asyncio.wait_for(task, 60)
    assert idle == [0]
    assert row.over == [row.chain]


def kill_and_wait(pid: int) -> None:
    """The event loop has not heard of it yet."""
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [])
    finally:
        os.close(pidfd)


def descriptors(instance: Instance) -> int:
    return len(os.listdir(f"/proc/{instance.pid}/fd"))
