"""How many frontend processes are chosen, and what decides it."""

from __future__ import annotations

import pytest

from naiad import wiring
from naiad.frontend_process.automatic import automatic_count
from naiad.settings import Settings
from naiad.settings.compound import HostPolicy


@pytest.mark.parametrize(
    ("num_cpus", "expected"),
    [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (31, 7), (32, 8), (256, 8)],
)
def test_few_cpus_need_one_process(num_cpus: int, expected: int) -> None:
    assert automatic_count(num_cpus) == expected


def set_cpus(monkeypatch: pytest.MonkeyPatch, num_cpus: int, in_one_node: int = 0) -> None:
    monkeypatch.setattr(wiring, "usable_cpus", lambda: num_cpus)
    monkeypatch.setattr(wiring, "largest_node_cpus", lambda: in_one_node or num_cpus)


def test_the_number_of_http_threads_limits_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 16)
    assert wiring.num_frontends(Settings(model_repository=("/models",))) == 4
    assert wiring.num_frontends(Settings(model_repository=("/models",), http_thread_count=3)) == 3
    explicit = Settings(model_repository=("/models",), http_thread_count=1, frontend_processes=6)
    assert wiring.num_frontends(explicit) == 6


def test_api_keys_do_not_change_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 16)
    settings = Settings(model_repository=("/models",), api_key=("secret",))
    assert wiring.num_frontends(settings) == 4


def test_the_cpus_of_one_numa_node_count(monkeypatch: pytest.MonkeyPatch) -> None:
    set_cpus(monkeypatch, 16, 8)
    assert wiring.num_frontends(Settings(model_repository=("/models",))) == 2


def test_frontends_are_not_more_than_the_cores_of_their_host_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_cpus(monkeypatch, 32)
    policy = (HostPolicy("frontend", "cpu-cores", "0-2"),)
    settings = Settings(model_repository=("/models",), host_policy=policy)
    assert wiring.num_frontends(settings) == 3
