from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from naiad.core.statistics import ModelStatistics
from naiad.instances.heartbeat import READY_HOOK_NS, Heartbeat
from naiad.instances.in_flight import InFlight
from naiad.instances.instance_plan import InstancePlan
from naiad.instances.lease import LeaseNumbers
from naiad.instances.loan import Loan
from naiad.instances.observers import Observers
from naiad.instances.restart import RestartPolicy
from naiad.instances.template_process import Templates
from naiad.ipc.messages import Ping, Pong
from tests.fakes import FakeBorrower, FakeClock, FakeInstance, FakeObserver
from tests.unit.instances.identity_instance import make_instance


async def test_a_stopped_worker_is_unhealthy_until_it_goes_on(templates: Templates) -> None:
    instance = make_instance(templates)
    await instance.load()
    observer = FakeObserver()
    instance.attach(observer)
    os.kill(instance.pid, signal.SIGSTOP)
    instance.heartbeat(1)
    assert instance.is_healthy
    instance.heartbeat(60_000_000_000)
    assert not instance.is_healthy
    observer.state_change.clear()
    os.kill(instance.pid, signal.SIGCONT)
    await asyncio.wait_for(observer.state_change.wait(), 60)
    assert instance.is_healthy
    await instance.stop(5)


async def test_a_stopped_lent_worker_is_unhealthy_once_its_borrower_is_idle(
    templates: Templates,
) -> None:
    instance = make_instance(templates)
    await instance.load()
    instance.loan.is_allowed = True
    borrower = FakeBorrower(is_at_rest=False)
    lent = instance.loan.lend(1, borrower)
    assert lent is not None
    observer = FakeObserver()
    instance.attach(observer)
    os.kill(instance.pid, signal.SIGSTOP)
    instance.loan.recall()
    instance.heartbeat(1)
    instance.heartbeat(60_000_000_000)
    assert instance.is_healthy  # it may be in a call
    borrower.is_at_rest = True
    instance.heartbeat(1)
    instance.heartbeat(60_000_000_000)
    assert not instance.is_healthy
    observer.state_change.clear()
    os.kill(instance.pid, signal.SIGCONT)
    await asyncio.wait_for(observer.state_change.wait(), 60)
    assert instance.is_healthy
    lent[1].close()
    await instance.stop(5)
    assert borrower.ended == [lent[0]]


class FakeChannel:
    """Notes what is sent to the worker."""

    def __init__(self) -> None:
        self.sent: list[Ping] = []

    def send(self, message: Ping) -> None:
        self.sent.append(message)


def test_a_reply_in_time_ends_its_deadline_and_later_questions_have_their_own() -> None:
    clock, observers = FakeClock(), Observers(FakeInstance())
    channel: Any = FakeChannel()
    in_flight = InFlight()
    plan = InstancePlan("python", "m", "1", False, 0, RestartPolicy())
    statistics = ModelStatistics("m", 1)
    loan = Loan(plan, in_flight, observers, statistics, LeaseNumbers(), has_permit=False)
    heartbeat = Heartbeat("m_0", clock, in_flight, loan, observers)
    heartbeat.begin(channel, has_ready_hook=True)
    answers: list[tuple[str, bool]] = []
    heartbeat.ask_ready(lambda is_ready: answers.append(("first", is_ready)))
    heartbeat.on_pong(Pong(channel.sent[-1].number, True))
    clock.advance(READY_HOOK_NS - 1)
    heartbeat.ask_ready(lambda is_ready: answers.append(("second", is_ready)))
    clock.advance(1)
    assert answers == [("first", True)]
    heartbeat.on_pong(Pong(channel.sent[-1].number, True))
    assert answers == [("first", True), ("second", True)]
    heartbeat.ask_ready(lambda is_ready: answers.append(("third", is_ready)))
    clock.advance(READY_HOOK_NS)
    assert answers[-1] == ("third", False)
