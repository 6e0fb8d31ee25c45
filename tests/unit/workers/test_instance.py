"""Instances with real worker processes, on the built-in identity backend."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import msgspec
import numpy as np
import pytest

from naiad.core.clock import LoopClock
from naiad.core.request import InferRequest
from naiad.core.response import ResponseStream
from naiad.core.statistics import ModelStatistics
from naiad.core.tensor import Tensor
from naiad.core.work import LoadArguments
from naiad.errors import Code, NaiadError
from naiad.shm.arena import Arena
from naiad.workers.calls import Services
from naiad.workers.instance import Instance, State
from naiad.workers.instance_plan import InstancePlan
from naiad.workers.lease import Lease
from naiad.workers.restart import RestartPolicy
from naiad.workers.template_process import Templates


def make_instance(templates: Templates, *, execution_timeout_ns: int = 0, **parameters: str) -> Instance:
    config = {
        "input": [{"name": "INPUT0"}],
        "output": [{"name": "OUTPUT0"}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }

    async def no_control(operation: object) -> bool:
        return False

    def no_infer(request: InferRequest) -> ResponseStream:
        raise AssertionError

    services = Services(no_infer, lambda name, version: False, lambda owner, operation: 0.0, lambda owner: None, no_control)
    arguments = LoadArguments("m", 1, "/nowhere", "m_0", "CPU", 0, msgspec.json.encode(config))
    plan = InstancePlan("identity", "m", "1", False, execution_timeout_ns, RestartPolicy())
    return Instance(LoopClock(asyncio.get_running_loop()), templates, plan, arguments, Arena(), ModelStatistics("m", 1), services)


def request(array: np.ndarray[Any, Any], data: memoryview | None = None) -> InferRequest:
    tensor = Tensor("INPUT0", "FP32", list(array.shape), array.tobytes() if data is None else data)
    return InferRequest("m", [tensor], stream=ResponseStream())


async def infer(instance: Instance, *requests: InferRequest) -> list[np.ndarray[Any, Any]]:
    instance.execute(list(requests))
    responses = await asyncio.gather(*(r.stream.single() for r in requests if r.stream is not None))
    return [response.outputs[0].as_numpy() for response in responses]


async def test_small_and_large_tensors_come_back_as_they_went(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    for size in (0, 1, 8191, 8192, 8193, 300_000, 5_000_000):
        array = np.random.default_rng(size).random(size, dtype=np.float32)
        for _ in range(3):
            (result,) = await infer(instance, request(array))
            assert np.array_equal(result, array)
    await instance.stop(5)


async def test_a_batch_keeps_its_requests_apart(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    arrays = [np.full(10 ** (number % 6), number, np.float32) for number in range(32)]
    results = await infer(instance, *(request(array) for array in arrays))
    assert all(np.array_equal(result, array) for result, array in zip(results, arrays, strict=True))
    await instance.stop(5)


async def test_memory_of_the_arena_is_passed_and_returned_without_a_copy(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    view = instance._arena.allocate(4_000_000)
    array = np.frombuffer(view, np.float32)
    array[:] = np.arange(1_000_000)
    (result,) = await infer(instance, request(array, view))
    assert result.__array_interface__["data"][0] == array.__array_interface__["data"][0]
    await instance.stop(5)


async def test_slots_are_reused_so_memory_does_not_grow(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    array = np.zeros(500_000, np.float32)
    for _ in range(50):
        await infer(instance, request(array))
    assert instance._arena.committed_bytes <= 3 * 2_500_000
    await instance.stop(5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_killed_worker_fails_its_requests_at_once_and_comes_back(templates: Templates, number: signal.Signals) -> None:
    instance = make_instance(templates, execute_delay_ms="60000")
    await instance.load()
    pid = instance.pid
    states: asyncio.Queue[State] = asyncio.Queue()
    instance.on_state = lambda changed: states.put_nowait(changed.state)
    pending = request(np.ones(4, np.float32))
    instance.execute([pending])
    os.kill(pid, number)
    assert pending.stream is not None
    with pytest.raises(NaiadError, match="Failed to process the request") as failure:
        await pending.stream.single()
    assert failure.value.code is Code.INTERNAL
    assert [await states.get(), await states.get()] == [State.DOWN, State.READY]
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
    with pytest.raises(NaiadError, match="parameter 'execute_delay_ms' is 'soon', expected a number"):
        await instance.load()
    assert instance.pid == 0


async def test_a_load_that_never_returns_can_be_given_up(templates: Templates) -> None:
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


async def test_an_execution_past_its_limit_is_killed(templates: Templates) -> None:
    instance = make_instance(templates, execution_timeout_ns=50_000_000, execute_delay_ms="60000")
    await instance.load()
    pending = request(np.ones(4, np.float32))
    instance.execute([pending])
    assert pending.stream is not None
    with pytest.raises(NaiadError, match="its worker process ended"):
        await pending.stream.single()
    await instance.stop(0)


async def test_a_stopped_worker_is_unhealthy_until_it_goes_on(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    changed = asyncio.Event()
    instance.on_state = lambda _: changed.set()
    os.kill(instance.pid, signal.SIGSTOP)
    instance.heartbeat(1)
    assert instance.is_healthy
    instance.heartbeat(60_000_000_000)
    assert not instance.is_healthy
    changed.clear()
    os.kill(instance.pid, signal.SIGCONT)
    await asyncio.wait_for(changed.wait(), 60)
    assert instance.is_healthy
    await instance.stop(5)


async def test_a_stopped_worker_that_is_lent_is_unhealthy_when_its_borrower_rests(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    instance.is_lendable = True
    is_at_rest = False
    over: list[Lease] = []
    lent = instance.lend(1, lambda: is_at_rest, over.append)
    assert lent is not None
    changed = asyncio.Event()
    instance.on_state = lambda _: changed.set()
    os.kill(instance.pid, signal.SIGSTOP)
    instance.recall()
    instance.heartbeat(1)
    instance.heartbeat(60_000_000_000)
    assert instance.is_healthy  # it may be in a call
    is_at_rest = True
    instance.heartbeat(1)
    instance.heartbeat(60_000_000_000)
    assert not instance.is_healthy
    changed.clear()
    os.kill(instance.pid, signal.SIGCONT)
    await asyncio.wait_for(changed.wait(), 60)
    assert instance.is_healthy
    lent[1].close()
    await instance.stop(5)
    assert over == [lent[0]]


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
