"""When work moves from one frontend process to others, and how much."""

from __future__ import annotations

import pytest

from naiad.frontend_process.balance import MIN_BUSY, MIN_DIFFERENCE, find_unevenness


@pytest.mark.parametrize(
    "busy",
    [
        {},
        {"a": 1.0},
        {"a": MIN_BUSY - 0.01, "b": 0.0},
        {"a": 1.0, "b": 1.0 - MIN_DIFFERENCE + 0.01},
        {"a": 1.0, "b": 1.0, "c": 0.9},
    ],
)
def test_nothing_moves_between_frontends_that_are_alike_or_idle(busy: dict[str, float]) -> None:
    assert find_unevenness(busy) is None


def test_the_busiest_gives_up_what_makes_it_as_busy_as_the_idlest() -> None:
    uneven = find_unevenness({"a": 0.2, "b": 1.0, "c": 0.9})
    assert uneven is not None
    assert uneven.hottest == "b"
    assert 1.0 - uneven.share * 1.0 == pytest.approx(0.2 + uneven.share * 1.0)


def test_an_idle_frontend_gets_half() -> None:
    uneven = find_unevenness({"a": 0.0, "b": 0.8})
    assert uneven is not None
    assert uneven.share == pytest.approx(0.5)
