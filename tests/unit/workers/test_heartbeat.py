from __future__ import annotations

import asyncio
import os
import signal

from naiad.workers.lease import Lease
from naiad.workers.template_process import Templates
from tests.unit.workers.identity_instance import make_instance


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
