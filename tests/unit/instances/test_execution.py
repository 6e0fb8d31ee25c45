from __future__ import annotations

import asyncio
import errno

import numpy as np
import pytest

from naiad.core.tensor import SlotRef
from naiad.errors import Code, NaiadError
from naiad.instances.template_process import Templates
from naiad.ipc.messages import Executed, Response, ToServer
from naiad.ipc.work import WorkResponse
from tests.unit.instances.identity_instance import infer, make_instance, make_job


async def test_small_and_large_tensors_come_back_as_they_went(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    for size in (0, 1, 8191, 8192, 8193, 300_000, 5_000_000):
        array = np.random.default_rng(size).random(size, dtype=np.float32)
        for _ in range(3):
            (result,) = await infer(instance, make_job(array))
            assert np.array_equal(result, array)
    await instance.stop(5)


async def test_a_batch_keeps_its_requests_apart(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    arrays = [np.full(10 ** (number % 6), number, np.float32) for number in range(32)]
    results = await infer(instance, *(make_job(array) for array in arrays))
    assert all(np.array_equal(result, array) for result, array in zip(results, arrays, strict=True))
    await instance.stop(5)


async def test_memory_of_the_arena_is_passed_and_returned_without_a_copy(
    templates: Templates,
) -> None:
    instance = make_instance(templates)
    await instance.load()
    view = instance._arena.allocate(4_000_000)
    array = np.frombuffer(view, np.float32)
    array[:] = np.arange(1_000_000)
    (result,) = await infer(instance, make_job(array, view))
    assert result.__array_interface__["data"][0] == array.__array_interface__["data"][0]
    await instance.stop(5)


async def test_slots_are_reused_so_memory_does_not_grow(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    array = np.zeros(500_000, np.float32)
    for _ in range(50):
        await infer(instance, make_job(array))
    assert instance._arena.committed_bytes <= 3 * 2_500_000
    await instance.stop(5)


async def test_without_descriptors_large_tensors_fail_and_nothing_is_lost(
    templates: Templates, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = make_instance(templates, execution_timeout_ns=3600 * 10**9)
    await instance.load()
    array = np.arange(500_000, dtype=np.float32)
    view = instance._arena.allocate(array.nbytes)
    np.frombuffer(view, np.float32)[:] = array
    slot = instance._arena.find(view)
    assert slot is not None

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("os.memfd_create", none_left)
        # The first one's memory is shared already, the second one's would have to be copied there.
        batch = [make_job(array, view), make_job(array)]
        instance.execute(batch)
        for each in batch:
            with pytest.raises(
                NaiadError,
                match=r"no shared memory is left for large tensors: .*Too many open files",
            ) as failed:
                await each.stream.single()
            assert failed.value.code is Code.UNAVAILABLE
        (small,) = await infer(instance, make_job(array[:10]))
        assert np.array_equal(small, array[:10])
    assert slot[0].leases == 0
    assert instance.inflight == 0
    (result,) = await infer(instance, make_job(array))
    assert np.array_equal(result, array)
    await instance.stop(5)


async def test_an_execution_past_its_limit_is_killed(templates: Templates) -> None:
    instance = make_instance(templates, execution_timeout_ns=50_000_000, execute_delay_ms="60000")
    await instance.load()
    pending = make_job(np.ones(4, np.float32))
    instance.execute([pending])
    with pytest.raises(NaiadError, match="its worker process ended"):
        await pending.stream.single()
    await instance.stop(0)


@pytest.mark.parametrize("is_sender", [False, True])
async def test_a_wrong_reference_in_a_response_fails_everything_that_the_worker_had(
    templates: Templates, is_sender: bool
) -> None:
    instance = make_instance(templates)
    await instance.load()
    assert instance._process is not None
    channel = instance._process.channel
    receive = channel._on_message

    def spoil(message: ToServer) -> None:
        if isinstance(message, Executed):
            answers = [response for response in message.responses if response is not None]
            answers[1].outputs[0].data = SlotRef(12345, 0, 16)  # type: ignore[assignment]
            if is_sender:
                receive(Response(2, WorkResponse(answers[1].outputs), True))
        receive(message)

    channel._on_message = spoil
    given = [make_job(np.ones(4, np.float32)) for _ in range(3)]
    instance.execute(given)
    for one in given:
        with pytest.raises(NaiadError, match="its worker process ended"):
            await asyncio.wait_for(one.stream.single(), 60)
    assert instance.inflight == 0
    await instance.stop(5)
