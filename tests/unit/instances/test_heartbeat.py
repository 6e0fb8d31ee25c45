from __future__ import annotations

import asyncio
import os
import signal

from naiad.instances.template_process import Templates
from tests.fakes import FakeBorrower, FakeObserver
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
