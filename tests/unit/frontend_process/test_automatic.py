"""How many frontend processes are chosen, and what decides it."""

from __future__ import annotations

import pytest

from naiad import wiring
from naiad.frontend_process.automatic import automatic_count
from naiad.settings import Settings


@pytest.mark.parametrize(
    ("num_cpus", "expected"),
    [(1, 1), (2, 1), (7, 1), (8, 2), (16, 4), (31, 7), (32, 8), (256, 8)],
)
def test_few_cpus_need_one_process(num_cpus: int, expected: int) -> None:
    assert automatic_count(num_cpus) == expected


def test_the_number_of_http_threads_limits_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "usable_cpus", lambda: 16)
    assert wiring.num_frontends(Settings(model_repository=("/models",))) == 4
    assert wiring.num_frontends(Settings(model_repository=("/models",), http_thread_count=3)) == 3
    explicit = Settings(model_repository=("/models",), http_thread_count=1, frontend_processes=6)
    assert wiring.num_frontends(explicit) == 6


def test_one_process_checks_api_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "usable_cpus", lambda: 16)
    settings = Settings(model_repository=("/models",), frontend_processes=4, api_key=("secret",))
    assert wiring.num_frontends(settings) == 1
