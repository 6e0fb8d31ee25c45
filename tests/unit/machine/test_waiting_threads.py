from __future__ import annotations

import pytest

from naiad.machine.waiting_threads import sleeping_threads


def test_threads_sleep_by_default() -> None:
    assert sleeping_threads({"PATH": "/bin"}) == {
        "PATH": "/bin",
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
        "OPENBLAS_THREAD_TIMEOUT": "4",
    }


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_keeps_the_choice_of_the_user(name: str) -> None:
    """One choice is for every OpenMP library, so that ours do not contradict it."""
    chosen = {name: "theirs", "OPENBLAS_THREAD_TIMEOUT": "26"}
    assert sleeping_threads(chosen) == chosen
