"""Requests for related models wait for each other, others do not; a request that would wait for
itself is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from naiad.errors import NaiadError
from naiad.repository.load.load_locks import LoadLock, LoadLocks
from naiad.repository.load.load_scope import LoadScope


async def run_ready_tasks() -> None:
    """Returns when every task waits for something."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def held(locks: LoadLocks, *keys: str, caller: str = "") -> AsyncIterator[LoadLock]:
    async def find_scope() -> LoadScope:
        return LoadScope(frozenset(keys))

    async with locks.acquire(find_scope, caller) as lock:
        yield lock


async def run(locks: LoadLocks, log: list[str], name: str, *keys: str, caller: str = "") -> None:
    async with held(locks, *keys, caller=caller):
        log.append(name)


async def test_unrelated_models_do_not_wait() -> None:
    locks = LoadLocks()
    async with held(locks, "a"), held(locks, "b") as lock:
        assert lock.scope.keys == {"b"}


async def test_related_models_wait_in_order() -> None:
    locks, log = LoadLocks(), list[str]()
    async with held(locks, "a", "b"):
        waiting = [
            asyncio.ensure_future(run(locks, log, str(number), "b", "c")) for number in range(3)
        ]
        await run_ready_tasks()
        assert log == []
    await asyncio.gather(*waiting)
    assert log == ["0", "1", "2"]


async def test_a_cancelled_request_stops_waiting() -> None:
    locks, log = LoadLocks(), list[str]()
    async with held(locks, "a"):
        waiting = asyncio.ensure_future(run(locks, log, "x", "a"))
        await run_ready_tasks()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await run(locks, log, "y", "a")
    assert log == ["y"]


async def test_an_error_releases_the_lock() -> None:
    locks = LoadLocks()
    with pytest.raises(ValueError, match="no"):
        async with held(locks, "a"):
            raise ValueError("no")
    async with held(locks, "a"):
        pass


async def test_a_scope_that_became_out_of_date_is_read_again() -> None:
    """A related request begins and ends while the disk is read."""
    locks, num_reads = LoadLocks(), 0

    async def find_scope() -> LoadScope:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 1:
            async with held(locks, "a"):
                pass
        return LoadScope(frozenset({"a"}))

    async with locks.acquire(find_scope):
        assert num_reads == 2


async def test_a_starting_model_may_load_others() -> None:
    locks, log = LoadLocks(), list[str]()
    async with held(locks, "one") as lock:
        lock.starting.add("one_group")
        await run(locks, log, "other", "other", caller="one_group_0")
    assert log == ["other"]


async def refused(locks: LoadLocks, *keys: str, caller: str) -> str:
    with pytest.raises(NaiadError) as caught:
        async with held(locks, *keys, caller=caller):
            pass
    return caught.value.message


async def test_a_starting_model_may_not_load_itself() -> None:
    locks = LoadLocks()
    async with held(locks, "one", "ensemble") as lock:
        lock.starting.add("one")
        message = await refused(locks, "ensemble", "x", caller="one_0")
    assert (
        message
        == "a related model 'ensemble' to a load/unload request is currently loading or unloading"
    )


async def test_starting_models_that_load_each_other_are_refused() -> None:
    locks, log = LoadLocks(), list[str]()
    async with held(locks, "one") as one:
        one.starting.add("one")
        async with held(locks, "two") as two:
            two.starting.add("two")
            waiting = asyncio.ensure_future(run(locks, log, "two from one", "two", caller="one_0"))
            await run_ready_tasks()
            assert "related model 'one'" in await refused(locks, "one", caller="two_0")
        await waiting
    assert log == ["two from one"]


async def test_two_starting_models_may_load_the_same_model() -> None:
    locks, log = LoadLocks(), list[str]()
    async with held(locks, "one") as one, held(locks, "two") as two:
        one.starting.add("one")
        two.starting.add("two")
        async with held(locks, "shared", caller="one_0"):
            waiting = asyncio.ensure_future(run(locks, log, "two", "shared", caller="two_0"))
            await run_ready_tasks()
            assert log == []
        await waiting
