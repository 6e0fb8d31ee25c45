"""Questions to a model's own `is_ready`: who gets which result, and what happens when it hangs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from naiad.instances.ready_hook import LIMIT_NS, ReadyHook
from naiad.ipc.readiness import NOT_READY, QUESTION, READY
from tests.fakes import FakeClock


class Rig:
    """A hook, and the worker's end of its socket."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hook = ReadyHook("m_0", self.clock)
        ours, self.worker = socket.socketpair()
        self.worker.setblocking(False)
        self.hook.begin(ours)
        self.replies: list[tuple[str, bool]] = []

    def ask(self, name: str) -> None:
        self.hook.ask(lambda is_ready: self.replies.append((name, is_ready)))

    def questions(self) -> bytes:
        try:
            return self.worker.recv(100)
        except BlockingIOError:
            return b""

    async def reply(self, reply: bytes) -> None:
        self.worker.send(reply)
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
async def rig() -> Rig:
    return Rig()


@pytest.fixture(autouse=True)
def closed(rig: Rig) -> Iterator[None]:
    yield
    rig.worker.close()


async def test_the_hook_runs_only_when_somebody_asks(rig: Rig) -> None:
    rig.clock.advance_s(600)
    assert rig.questions() == b""
    rig.ask("a")
    assert (rig.questions(), rig.replies) == (QUESTION, [])
    await rig.reply(READY)
    assert rig.replies == [("a", True)]
    rig.ask("b")
    assert rig.questions() == QUESTION
    await rig.reply(NOT_READY)
    assert rig.replies == [("a", True), ("b", False)]
    rig.hook.end()


async def test_whoever_asks_during_a_run_gets_its_result(rig: Rig) -> None:
    rig.ask("a")
    rig.clock.advance_s(1)
    rig.ask("b")
    rig.ask("c")
    assert rig.questions() == QUESTION
    await rig.reply(READY)
    assert rig.replies == [("a", True), ("b", True), ("c", True)]
    rig.hook.end()


async def test_each_asker_waits_five_seconds_and_the_run_goes_on(rig: Rig) -> None:
    rig.ask("a")
    rig.clock.advance(LIMIT_NS - 1)
    rig.ask("b")
    assert rig.replies == []
    rig.clock.advance(1)
    assert rig.replies == [("a", False)]
    rig.ask("c")
    assert rig.questions() == QUESTION, "no second run while the first hangs"
    await rig.reply(READY)
    assert rig.replies == [("a", False), ("b", True), ("c", True)]
    rig.clock.advance(10 * LIMIT_NS)
    assert len(rig.replies) == 3
    rig.ask("d")
    assert rig.questions() == QUESTION
    rig.hook.end()


async def test_a_late_reply_is_not_that_of_the_next_run(rig: Rig) -> None:
    rig.ask("a")
    rig.clock.advance(LIMIT_NS)
    await rig.reply(READY)
    assert rig.replies == [("a", False)]
    assert rig.questions() == QUESTION
    rig.ask("b")
    assert rig.questions() == QUESTION
    await rig.reply(NOT_READY)
    assert rig.replies == [("a", False), ("b", False)]
    rig.hook.end()


async def test_a_worker_that_ends_is_not_ready(rig: Rig) -> None:
    rig.ask("a")
    rig.worker.close()
    await rig.turn()
    assert rig.replies == [("a", False)]
    assert not rig.hook.is_there
    rig.ask("b")
    assert rig.replies == [("a", False), ("b", False)]


async def test_the_end_of_the_instance_replies_to_everybody(rig: Rig) -> None:
    rig.ask("a")
    rig.ask("b")
    rig.hook.end()
    assert rig.replies == [("a", False), ("b", False)]
    rig.clock.advance(LIMIT_NS)
    assert len(rig.replies) == 2
