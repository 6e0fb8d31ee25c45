from __future__ import annotations

from naiad.core.memory_budget import MemoryBudget
from naiad.core.memory_trim import MIN_FREED_BYTES, MIN_GROWN_BYTES, IdleTrim, MemoryTrim


def test_trims_once_after_a_peak() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    trims: list[bool] = []
    subject = MemoryTrim(budget, lambda: trims.append(True))
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
    subject = MemoryTrim(budget)
    for _ in range(10):
        account.add(4 * MIN_FREED_BYTES)
        account.add(-4 * MIN_FREED_BYTES)
        account.settle()
        assert subject.due() is None


def test_small_peaks_are_not_worth_it() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    subject = MemoryTrim(budget)
    account.add(MIN_FREED_BYTES - 1)
    account.add(1 - MIN_FREED_BYTES)
    account.settle()
    assert [subject.due() for _ in range(3)] == [None, None, None]


def test_malloc_trim_can_be_called() -> None:
    subject = MemoryTrim(MemoryBudget())
    subject._trim()


class Machine:
    def __init__(self) -> None:
        self.used_bytes = self.free_bytes = 0
        self.now_s = self.computed_s = 0.0
        self.num_trims = 0
        self.idle_trim = IdleTrim(
            self._trim,
            lambda: self.used_bytes + self.free_bytes,
            lambda: self.now_s,
            lambda: self.computed_s,
        )

    def _trim(self) -> None:
        self.num_trims += 1
        self.free_bytes = 0

    def look(self, computed_s: float = 0.0) -> bool:
        """Two seconds pass. Returns whether memory was trimmed then."""
        self.now_s += 2.0
        self.computed_s += computed_s
        trim = self.idle_trim.due()
        if trim is not None:
            trim()
        return trim is not None


def test_a_process_that_has_grown_is_trimmed_when_it_is_idle() -> None:
    machine = Machine()
    machine.free_bytes = MIN_GROWN_BYTES - 1
    assert not machine.look()
    machine.free_bytes = MIN_GROWN_BYTES
    assert not machine.look(computed_s=1.0)
    assert machine.look(computed_s=0.1)
    assert machine.free_bytes == 0
    assert not machine.look()


def test_memory_in_use_is_trimmed_when_it_is_free() -> None:
    machine = Machine()
    machine.used_bytes = 4 * MIN_GROWN_BYTES
    trims = [machine.look() for _ in range(100)]
    assert 4 <= sum(trims) <= 10
    machine.used_bytes, machine.free_bytes = 0, machine.used_bytes
    assert any(machine.look() for _ in range(31))
    assert machine.free_bytes == 0
