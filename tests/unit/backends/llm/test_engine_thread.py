"""Tests of the engine's thread and of how long an idle engine waits for further requests."""

from __future__ import annotations

import threading

import pytest

from naiad.backends.llm.engine_thread import MAX_WAIT_S, ArrivalWindow, EngineThread


def test_runs_everything_on_one_thread() -> None:
    thread = EngineThread()
    first = thread.call(threading.get_ident)
    ran: list[int] = []
    with pytest.raises(ValueError, match="as it is"):
        thread.call(lambda: int("as it is"))
    thread.start(lambda: ran.append(threading.get_ident()))
    thread.join(60)
    assert (ran, thread.is_alive()) == ([first], False)
    assert first != threading.get_ident()


def test_ends_without_a_last_function() -> None:
    thread = EngineThread()
    thread.end()
    thread.join(60)
    assert not thread.is_alive()


def test_a_request_that_arrives_alone_never_waits() -> None:
    window = ArrivalWindow()
    assert window.wait_s == 0.0
    window.record_step(0.02, 1)
    window.end_busy_period()
    assert window.wait_s == 0.0


def test_requests_that_arrived_together_are_awaited_for_a_part_of_a_step() -> None:
    window = ArrivalWindow()
    for num_open in (3, 8, 2):
        window.record_step(0.02, num_open)
    assert window.wait_s == 0.0, "only the previous busy period counts"
    window.end_busy_period()
    assert window.num_expected == 8
    assert window.wait_s == pytest.approx(0.005)
    window.end_busy_period()
    assert window.num_expected == 8, "waking up to update metrics is not a busy period"
    window.record_step(9.0, 2)
    window.end_busy_period()
    assert (window.num_expected, window.wait_s) == (2, MAX_WAIT_S)
    window.record_step(0.02, 1)
    window.end_busy_period()
    assert window.wait_s == 0.0
