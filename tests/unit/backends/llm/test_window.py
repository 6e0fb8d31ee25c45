"""How long an idle engine waits for those that come together."""

from __future__ import annotations

import pytest

from naiad.backends.llm.window import MAX_WAIT_S, ArrivalWindow


def test_who_comes_alone_never_waits() -> None:
    window = ArrivalWindow()
    assert window.wait_s == 0.0
    window.record_step(0.02, 1)
    window.end_busy_period()
    assert window.wait_s == 0.0


def test_those_who_came_together_are_waited_for_a_part_of_a_step() -> None:
    window = ArrivalWindow()
    for num_open in (3, 8, 2):
        window.record_step(0.02, num_open)
    assert window.wait_s == 0.0, "only the period before counts"
    window.end_busy_period()
    assert window.num_expected == 8
    assert window.wait_s == pytest.approx(0.005)
    window.end_busy_period()
    assert window.num_expected == 8, "waking up to show metrics is no busy period"
    window.record_step(9.0, 2)
    window.end_busy_period()
    assert (window.num_expected, window.wait_s) == (2, MAX_WAIT_S)
    window.record_step(0.02, 1)
    window.end_busy_period()
    assert window.wait_s == 0.0
