"""Related changes take turns, others do not wait; a change that would wait for itself is
refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from naiad.errors import NaiadError
from naiad.repository.load.load_locks import Turn, Turns


async def settle() -> None:
    """Everything that can go on has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def taken(turns: Turns, *keys: str, caller: str = "") -> AsyncIterator[Turn]:
    async def survey() -> set[str]:
        return set(keys)

    async with turns.take(survey, caller) as turn:
        yield turn


async def run(turns: Turns, log: list[str], name: str, *keys: str, caller: str = "") -> None:
    async with taken(turns, *keys, caller=caller):
        log.append(name)


async def test_others_go_side_by_side() -> None:
    turns = Turns()
    async with taken(turns, "a"), taken(turns, "b") as turn:
        assert turn.keys == {"b"}


async def test_related_ones_wait_in_order() -> None:
    turns, log = Turns(), list[str]()
    async with taken(turns, "a", "b"):
        waiting = [
            asyncio.ensure_future(run(turns, log, str(number), "b", "c")) for number in range(3)
        ]
        await settle()
        assert log == []
    await asyncio.gather(*waiting)
    assert log == ["0", "1", "2"]


async def test_a_cancelled_wait_is_forgotten() -> None:
    turns, log = Turns(), list[str]()
    async with taken(turns, "a"):
        waiting = asyncio.ensure_future(run(turns, log, "x", "a"))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await run(turns, log, "y", "a")
    assert log == ["y"]


async def test_an_error_ends_the_turn() -> None:
    turns = Turns()
    with pytest.raises(ValueError, match="no"):
        async with taken(turns, "a"):
            raise ValueError("no")
    async with taken(turns, "a"):
        pass


async def test_what_a_survey_saw_still_holds_when_the_turn_begins() -> None:
    """A related change begins and ends while the disk is read: the disk is read again."""
    turns, surveys = Turns(), 0

    async def survey() -> set[str]:
        nonlocal surveys
        surveys += 1
        if surveys == 1:
            async with taken(turns, "a"):
                pass
        return {"a"}

    async with turns.take(survey):
        assert surveys == 2


async def test_a_starting_model_may_load_others() -> None:
    turns, log = Turns(), list[str]()
    async with taken(turns, "one") as turn:
        turn.starting.add("one_group")
        await run(turns, log, "other", "other", caller="one_group_0")
    assert log == ["other"]


async def refused(turns: Turns, *keys: str, caller: str) -> str:
    with pytest.raises(NaiadError) as caught:
        async with taken(turns, *keys, caller=caller):
            pass
    return caught.value.message


async def test_a_starting_model_may_not_load_itself() -> None:
    turns = Turns()
    async with taken(turns, "one", "ensemble") as turn:
        turn.starting.add("one")
        words = await refused(turns, "ensemble", "x", caller="one_0")
    assert (
        words
        == "a related model 'ensemble' to a load/unload request is currently loading or unloading"
    )


async def test_a_circle_of_starting_models_is_refused() -> None:
    turns, log = Turns(), list[str]()
    async with taken(turns, "one") as one:
        one.starting.add("one")
        async with taken(turns, "two") as two:
            two.starting.add("two")
            waiting = asyncio.ensure_future(run(turns, log, "two from one", "two", caller="one_0"))
            await settle()
            assert "related model 'one'" in await refused(turns, "one", caller="two_0")
        await waiting
    assert log == ["two from one"]


async def test_two_starting_models_may_need_the_same() -> None:
    turns, log = Turns(), list[str]()
    async with taken(turns, "one") as one, taken(turns, "two") as two:
        one.starting.add("one")
        two.starting.add("two")
        async with taken(turns, "shared", caller="one_0"):
            waiting = asyncio.ensure_future(run(turns, log, "two", "shared", caller="two_0"))
            await settle()
            assert log == []
        await waiting
