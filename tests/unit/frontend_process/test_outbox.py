"""When an outbox sends: soon for few items, at once for many, later while more arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from naiad.frontend_process.outbox import ENOUGH, MAX_KEPT_S, MAX_TURNS, WAKE_UP_S, Outbox


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


class Timer:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Receiver:
    """Reads messages when it is told to. It is the event loop, too, whose timers end when the test
    says so."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.has_unread = False
        self.now_s = 1.0
        self.timers: list[Timer] = []
        self.call_soon = asyncio.get_running_loop().call_soon
        self.outbox: Outbox[int] = Outbox(
            cast(Any, self), self._on_sent, lambda: self.has_unread, lambda: self.now_s
        )

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, callback))
        return self.timers[-1]

    def _on_sent(self, items: list[int]) -> None:
        self.sent.append(items)
        self.has_unread = True


async def turns() -> None:
    for _ in range(MAX_TURNS + 2):
        await asyncio.sleep(0)


async def test_a_receiver_that_may_still_wake_up_gets_the_next_message_at_once() -> None:
    receiver = Receiver()
    receiver.outbox.add(1)
    await turns()
    receiver.now_s += WAKE_UP_S / 2
    receiver.outbox.add(2)
    await turns()
    assert receiver.sent == [[1], [2]]


async def test_items_for_a_busy_receiver_travel_together_when_it_has_read() -> None:
    receiver = Receiver()
    receiver.outbox.add(1)
    await turns()
    receiver.now_s += 2 * WAKE_UP_S
    receiver.outbox.add(2)
    await turns()
    receiver.outbox.add(3)
    await turns()
    receiver.outbox.resume()
    await turns()
    assert receiver.sent == [[1]], "it has not read the first message"
    receiver.has_unread = False
    receiver.outbox.resume()
    await turns()
    assert receiver.sent == [[1], [2, 3]]


async def test_enough_items_are_sent_to_a_busy_receiver() -> None:
    receiver = Receiver()
    receiver.outbox.add(0)
    await turns()
    receiver.now_s += 2 * WAKE_UP_S
    for number in range(1, ENOUGH + 1):
        receiver.outbox.add(number)
        await asyncio.sleep(0)
    assert receiver.sent == [[0], list(range(1, ENOUGH + 1))]
    assert all(timer.is_cancelled for timer in receiver.timers)


async def test_items_for_a_receiver_that_never_reads_are_sent_all_the_same() -> None:
    receiver = Receiver()
    receiver.outbox.add(1)
    await turns()
    receiver.now_s += 2 * WAKE_UP_S
    receiver.outbox.add(2)
    await turns()
    assert receiver.sent == [[1]]
    (timer,) = receiver.timers
    assert timer.delay_s == MAX_KEPT_S
    timer.callback()
    assert receiver.sent == [[1], [2]]
