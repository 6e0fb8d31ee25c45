"""One memory budget over several processes."""

from __future__ import annotations

import os

from naiad.frontend_process.shared_budget import SharedBudget, SharedPage

LIMIT = 1000


def test_a_process_may_hold_what_others_leave() -> None:
    page = SharedPage(2)
    here, there = SharedBudget(LIMIT, page, 0), SharedBudget(LIMIT, page, 1)
    account = there.open_account()
    assert account.reserve(400)
    assert here.total_used_bytes == 400
    assert here.used_bytes == 0
    newcomer = here.open_account()
    assert not newcomer.reserve(301)
    assert newcomer.reserve(300)
    assert there.total_used_bytes == 700
    account.give_back(400)
    assert newcomer.reserve(50)
    assert here.total_limit_bytes == LIMIT


def test_what_a_dead_process_held_is_free_again() -> None:
    page = SharedPage(2)
    here = SharedBudget(LIMIT, page, 0)
    pid = os.fork()
    if pid == 0:
        is_reserved = SharedBudget(LIMIT, page, 1).open_account().reserve(500)
        os._exit(0 if is_reserved else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert here.total_used_bytes == 500
    assert not here.open_account().reserve(300)
    here.forget(1)
    assert here.open_account().reserve(300)


def test_refusals_of_all_processes_are_summed_and_stay_when_one_is_gone() -> None:
    page = SharedPage(3)
    here, there = SharedBudget(LIMIT, page, 0), SharedBudget(LIMIT, page, 1)
    account = SharedBudget(LIMIT, page, 2).open_account()
    assert account.reserve(400)
    assert not here.open_account().charge(400)
    for _ in range(2):
        assert not there.open_account().charge(400)
    assert (here.num_refused, here.total_num_refused) == (1, 3)
    here.forget(1)
    assert not SharedBudget(LIMIT, page, 1).open_account().charge(400)
    assert here.total_num_refused == 4
