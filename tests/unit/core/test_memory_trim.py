from __future__ import annotations

from naiad.core.memory_budget import MemoryBudget
from naiad.core.memory_trim import MIN_FREED_BYTES, MemoryTrim


def test_trims_once_after_a_peak() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    trims: list[bool] = []
    subject = MemoryTrim(budget.pop_peak, lambda: trims.append(True))
    account.add(4 * MIN_FREED_BYTES)
    assert subject.due() is None
    account.add(-4 * MIN_FREED_BYTES)
    account.settle()
    assert subject.due() is None  # the peak was in this interval
    trim = subject.due()
    assert trim is not None
    trim()
    assert trims == [True]
    assert subject.due() is None


def test_steady_traffic_is_not_trimmed() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    subject = MemoryTrim(budget.pop_peak)
    for _ in range(10):
        account.add(4 * MIN_FREED_BYTES)
        account.add(-4 * MIN_FREED_BYTES)
        account.settle()
        assert subject.due() is None


def test_small_peaks_are_not_worth_it() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    subject = MemoryTrim(budget.pop_peak)
    account.add(MIN_FREED_BYTES - 1)
    account.add(1 - MIN_FREED_BYTES)
    account.settle()
    assert [subject.due() for _ in range(3)] == [None, None, None]


def test_malloc_trim_can_be_called() -> None:
    subject = MemoryTrim(MemoryBudget().pop_peak)
    subject._trim()
