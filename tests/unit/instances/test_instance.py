"""The life of instances with real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from typing import Any

import numpy as np
import pytest

from naiad.errors import Code, NaiadError
from naiad.instances.instance import State
from naiad.instances.template_process import Templates
from naiad.instances.worker_process import WorkerProcess
from naiad.ipc.messages import Loaded
from naiad.ipc.work import LoadArguments
from tests.unit.instances.identity_instance import make_instance, make_job


class StateQueue:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[State] = asyncio.Queue()

    def on_state_change(self, instance: Any) -> None:
        self.queue.put_nowait(instance.state)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_worker_fails_its_requests_at_once_and_comes_back(
    templates: Templates, number: signal.Signals
) -> None:
    instance = make_instance(templates, execute_delay_ms="60000")
    await instance.load()
    pid = instance.pid
    states = StateQueue()
    instance.add_state_observer(states)
    pending = make_job(np.ones(4, np.float32))
    instance.execute([pending])
    os.kill(pid, number)
    with pytest.raises(NaiadError, match="Failed to process the request") as failure:
        await pending.stream.single()
    assert failure.value.code is Code.INTERNAL
    assert [await states.queue.get(), await states.queue.get()] == [State.DOWN, State.READY]
    assert instance.pid not in (0, pid)
    assert instance._statistics.worker_restarts == 1
    await instance.stop(0)


async def test_unloading_ends_the_process(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    pid = instance.pid
    await instance.stop(5)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_failed_load_says_why_and_leaves_no_process(templates: Templates) -> None:
    instance = make_instance(templates, execute_delay_ms="soon")
    with pytest.raises(
        NaiadError, match="parameter 'execute_delay_ms' is 'soon', expected a number"
    ):
        await instance.load()
    assert instance.pid == 0


async def test_a_load_that_never_returns_can_be_cancelled(templates: Templates) -> None:
    instance = make_instance(templates, creation_delay_sec="3600")
    loading = asyncio.create_task(instance.load())
    while not instance.pid:
        await asyncio.sleep(0)
    pid = instance.pid
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_unloading_during_a_restart_leaves_no_process(
    templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_instance(templates)
    await instance.load()
    starting: asyncio.Queue[WorkerProcess] = asyncio.Queue()
    start = WorkerProcess.start

    async def note(process: WorkerProcess, templates: Templates, backend: str) -> None:
        starting.put_nowait(process)
        await start(process, templates, backend)

    monkeypatch.setattr(WorkerProcess, "start", note)
    os.kill(instance.pid, signal.SIGKILL)
    process = await starting.get()
    await instance.stop(5)
    await asyncio.wait_for(process.exited, 60)


async def test_a_worker_that_dies_when_it_has_loaded_does_not_serve(
    templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply and the end of the process may arrive before the task that waits for the reply
    continues. An instance that counted as ready then would lose its first batch."""
    instance = make_instance(templates)
    load = WorkerProcess.load

    async def load_and_die(process: WorkerProcess, arguments: LoadArguments) -> Loaded:
        loaded = await load(process, arguments)
        await process.kill()
        return loaded

    monkeypatch.setattr(WorkerProcess, "load", load_and_die)
    with pytest.raises(NaiadError, match="its worker process ended"):
        await instance.load()
    assert not instance.is_serving


async def test_workers_die_with_their_template(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    pidfd = os.pidfd_open(instance.pid)
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, gone.set)
    instance.state = State.STOPPED
    templates.close()
    await asyncio.wait_for(gone.wait(), 60)
    asyncio.get_running_loop().remove_reader(pidfd)
    os.close(pidfd)


async def test_the_death_of_a_template_is_no_crash_of_its_workers(templates: Templates) -> None:
    """Six deaths are a crash loop, in which a worker is started again every 30 s only."""
    instances = [make_instance(templates), make_instance(templates)]
    for instance in instances:
        await instance.load()
    states = [StateQueue(), StateQueue()]
    for instance, queue in zip(instances, states, strict=True):
        instance.add_state_observer(queue)
    for _ in range(6):
        templates.get("identity")._process.kill()
        for queue in states:
            changes = [await asyncio.wait_for(queue.queue.get(), 60) for _ in range(2)]
            assert changes == [State.DOWN, State.READY]
        assert not any(instance.is_broken for instance in instances)
    job = make_job(np.ones(4, np.float32))
    instances[0].execute([job])
    await job.stream.single()
    for instance in instances:
        assert instance._restarts._deaths == deque()
        await instance.stop(0)


async def test_a_template_that_sends_garbage_is_replaced(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    states = StateQueue()
    instance.add_state_observer(states)
    template = templates.get("identity")
    template._channel.close("bad message")
    assert [await states.queue.get(), await states.queue.get()] == [State.DOWN, State.READY]
    assert templates.get("identity") is not template
    await instance.stop(0)
