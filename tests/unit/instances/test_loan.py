from __future__ import annotations

import asyncio
import os
import signal

import numpy as np

from naiad.instances.template_process import Templates
from tests.fakes import FakeBorrower, FakeObserver
from tests.unit.instances.identity_instance import infer, make_instance, make_job


async def test_a_recalled_instance_is_free_when_its_stopped_worker_goes_on(
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
    instance.loan.recall(is_wanted=True)
    assert not instance.is_free  # as any other that is busy: who wants it waits
    os.kill(instance.pid, signal.SIGCONT)
    await asyncio.wait_for(observer.capacity.wait(), 60)
    assert instance.is_free
    assert borrower.ended == [lent[0]]
    array = np.ones(4, np.float32)
    (result,) = await infer(instance, make_job(array))
    assert np.array_equal(result, array)
    lent[1].close()
    await instance.stop(5)


async def test_an_instance_with_an_execution_limit_is_never_lent(templates: Templates) -> None:
    instance = make_instance(templates, execution_timeout_ns=60_000_000_000)
    await instance.load()
    instance.loan.is_allowed = True
    assert instance.loan.lend(1, FakeBorrower()) is None
    assert instance.is_free
    await instance.stop(5)


async def test_a_lent_instance_is_not_free_is_not_lent_again_and_does_not_borrow(
    templates: Templates,
) -> None:
    instance = make_instance(templates)
    await instance.load()
    # its scheduler has not said that it may
    assert instance.loan.lend(1, FakeBorrower()) is None
    instance.loan.is_allowed = True
    assert instance.may_borrow
    lent = instance.loan.lend(1, FakeBorrower())
    assert lent is not None
    assert not instance.is_free
    assert not instance.may_borrow
    assert instance.loan.lend(1, FakeBorrower()) is None
    lent[1].close()
    await instance.stop(5)
