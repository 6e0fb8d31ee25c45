from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from naiad.instances.heartbeat import READY_HOOK_NS, Heartbeat
from naiad.instances.lease import Lease
from naiad.instances.template_process import Templates
from naiad.ipc.messages import Ping, Pong
from tests.fakes import FakeClock
from tests.unit.instances.identity_instance import make_instance


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


async def test_a_stopped_worker_that_is_lent_is_unhealthy_when_its_borrower_rests(
    templates: Templates,
) -> None:
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


class IdleInstance:
    """Serves, and notes what is sent to its worker."""

    is_serving = is_healthy = True
    num_batches = 0
    lease = None

    def __init__(self) -> None:
        self.sent: list[Ping] = []
        self.process = self.channel = self

    def send(self, message: Ping) -> None:
        self.sent.append(message)


def test_an_answer_in_time_ends_its_deadline_and_spares_who_asks_later() -> None:
    clock, instance = FakeClock(), IdleInstance()
    like: Any = instance
    heartbeat = Heartbeat(like, clock)
    heartbeat.begin(has_ready_hook=True)
    answers: list[tuple[str, bool]] = []
    heartbeat.ask_ready(lambda is_ready: answers.append(("first", is_ready)))
    heartbeat.on_pong(Pong(instance.sent[-1].number, True))
    clock.advance(READY_HOOK_NS - 1)
    heartbeat.ask_ready(lambda is_ready: answers.append(("second", is_ready)))
    clock.advance(1)
    assert answers == [("first", True)]
    heartbeat.on_pong(Pong(instance.sent[-1].number, True))
    assert answers == [("first", True), ("second", True)]
    heartbeat.ask_ready(lambda is_ready: answers.append(("third", is_ready)))
    clock.advance(READY_HOOK_NS)
    assert answers[-1] == ("third", False)
