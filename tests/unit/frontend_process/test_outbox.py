"""When an outbox sends: soon for few items, at once for many, later while more arrives."""

from __future__ import annotations

import asyncio

from naiad.frontend_process.outbox import ENOUGH, MAX_TURNS, Outbox


def make() -> tuple[Outbox[int], list[list[int]]]:
    sent: list[list[int]] = []
    return Outbox(asyncio.get_running_loop(), sent.append), sent


async def test_a_lone_item_is_sent_at_the_end_of_its_turn() -> None:
    outbox, sent = make()
    outbox.add(1)
    assert sent == []
    await asyncio.sleep(0)
    assert sent == [[1]]


async def test_items_of_successive_turns_share_a_message() -> None:
    outbox, sent = make()
    outbox.add(1)
    outbox.add(2)
    await asyncio.sleep(0)
    assert sent == []
    outbox.add(3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent == [[1, 2, 3]]


async def test_it_does_not_wait_for_ever() -> None:
    outbox, sent = make()
    outbox.add(0)
    for number in range(1, MAX_TURNS + 3):
        outbox.add(number)
        await asyncio.sleep(0)
    assert sent[0] == list(range(MAX_TURNS + 2))


async def test_many_items_are_sent_at_once() -> None:
    outbox, sent = make()
    for number in range(ENOUGH):
        outbox.add(number)
    assert sent == [list(range(ENOUGH))]
    outbox.add(ENOUGH)
    for _ in range(MAX_TURNS + 2):
        await asyncio.sleep(0)
    assert sent[1:] == [[ENOUGH]]


async def test_flush_sends_everything_and_nothing_twice() -> None:
    outbox, sent = make()
    outbox.add(1)
    outbox.add(2)
    outbox.flush()
    for _ in range(MAX_TURNS + 2):
        await asyncio.sleep(0)
    assert sent == [[1, 2]]
