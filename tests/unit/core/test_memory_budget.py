"""The budget for requests and responses, without sockets."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from naiad.core.memory_budget import CHUNK_BYTES, Grow, MemoryBudget

MIB = 1 << 20


def test_one_account_gets_half_of_the_budget() -> None:
    budget = MemoryBudget(10 * MIB)
    account = budget.open_account()
    assert account.charge(5 * MIB)
    assert not account.charge(1)
    assert budget.num_refused == 1
    assert budget.used_bytes == 5 * MIB


def test_greedy_accounts_leave_room_for_a_newcomer() -> None:
    budget = MemoryBudget(64 * MIB)
    accounts = [budget.open_account() for _ in range(8)]
    is_growing = True
    while is_growing:
        is_growing = sum(account.charge(MIB) for account in accounts) > 0
    shares = [account.reserved_bytes // MIB for account in accounts]
    assert shares == [7] * 8
    assert budget.open_account().charge(3 * MIB)


def test_an_account_that_holds_much_is_refused_before_others() -> None:
    budget = MemoryBudget(10 * MIB)
    greedy, modest = budget.open_account(), budget.open_account()
    assert greedy.charge(5 * MIB)
    assert modest.charge(2 * MIB)
    assert not greedy.charge(1 * MIB)


def test_a_refusal_changes_nothing() -> None:
    budget = MemoryBudget(2 * MIB)
    account = budget.open_account()
    assert account.charge(1000)
    before = account.free_bytes, account.reserved_bytes, budget.used_bytes
    assert not account.charge(2 * MIB)
    assert (account.free_bytes, account.reserved_bytes, budget.used_bytes) == before


def test_small_charges_reserve_a_chunk_that_is_given_back() -> None:
    budget = MemoryBudget(10 * MIB)
    account = budget.open_account()
    assert account.charge(100)
    assert budget.used_bytes == 100 + CHUNK_BYTES
    account.settle()
    assert budget.used_bytes == 100
    account.release(100)
    account.settle()
    assert budget.used_bytes == 0


def test_the_last_bytes_are_charged_without_a_chunk() -> None:
    budget = MemoryBudget(2000)
    assert budget.open_account().charge(1000)
    assert budget.open_account().charge(0)


def test_fits_says_what_charge_would() -> None:
    budget = MemoryBudget(2 * MIB)
    account = budget.open_account()
    assert account.fits(MIB)
    assert not account.fits(MIB + 1)
    assert budget.used_bytes == 0
    assert account.charge(MIB)


def test_bytes_that_exist_are_counted_beyond_the_limit() -> None:
    budget = MemoryBudget(MIB)
    account = budget.open_account()
    account.add(3 * MIB)
    assert budget.used_bytes == 3 * MIB
    assert not budget.open_account().charge(1)
    account.add(-3 * MIB)
    account.settle()
    assert budget.used_bytes == 0


def test_held_memory_is_given_back_when_its_last_view_is_gone() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    memory = np.empty(MIB, np.uint8).data
    assert account.charge(MIB)
    account.hold(memory, MIB)
    account.settle()
    view = memory[10:20]
    gc.disable()
    try:
        del memory
        assert budget.used_bytes == MIB
        del view
        assert budget.used_bytes == 0
    finally:
        gc.enable()


def test_what_a_closed_account_had_reserved_is_given_back() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    assert account.charge(10)
    account.release(10)
    assert budget.used_bytes > 0
    del account
    assert budget.used_bytes == 0


def test_produce_counts_what_was_made_until_it_is_gone() -> None:
    budget = MemoryBudget()
    account = budget.open_account()

    def make(grow: Grow) -> memoryview:
        assert grow(1000)
        assert budget.used_bytes == 1000
        return np.empty(600, np.uint8).data

    memory = account.produce(make)
    assert budget.used_bytes == 600
    del memory
    assert budget.used_bytes == 0


def test_produce_gives_back_everything_when_it_fails() -> None:
    budget = MemoryBudget(2000)
    account = budget.open_account()

    def make(grow: Grow) -> memoryview:
        assert grow(600)
        assert not grow(600)
        raise KeyError

    with pytest.raises(KeyError):
        account.produce(make)
    assert budget.used_bytes == 0
    assert budget.num_refused == 1


def test_threads_do_not_lose_counts() -> None:
    budget = MemoryBudget()
    account = budget.open_account()

    def work() -> None:
        for _ in range(2000):
            memory = account.produce(lambda grow: np.empty(int(grow(7)) * 7, np.uint8).data)
            del memory

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (budget.used_bytes, account.reserved_bytes) == (0, 0)


def test_the_peak_starts_again() -> None:
    budget = MemoryBudget()
    account = budget.open_account()
    account.add(100)
    account.add(-100)
    account.settle()
    assert (budget.pop_peak(), budget.pop_peak()) == (100, 0)
