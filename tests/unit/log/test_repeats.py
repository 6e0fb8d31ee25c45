"""Failures that repeat are counted."""

from __future__ import annotations

from naiad.log import repeats
from naiad.log.repeats import Repeats

PLACE = ("ERROR", "server.py", 7)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_same_message_is_written_a_few_times_and_then_counted() -> None:
    clock = Clock()
    counted = Repeats(clock)
    assert [counted.admit(PLACE, "down") for _ in range(1000)] == [True] * 3 + [False] * 997
    assert counted.admit(PLACE, "something else")
    assert counted.admit(("ERROR", "server.py", 8), "down")
    assert counted.pop_due() == []
    clock.now_s += repeats.WINDOW_S
    assert counted.pop_due() == [(PLACE, "997 more times within 10 s: down")]
    assert counted.pop_due() == []
    assert counted.admit(PLACE, "down")


def test_messages_that_differ_are_limited_by_their_place() -> None:
    clock = Clock()
    counted = Repeats(clock)
    written = [counted.admit(PLACE, f"worker {number} died") for number in range(250)]
    assert written == [True] * 100 + [False] * 150
    assert counted.pop_due(is_final=True) == [
        (PLACE, "150 more messages like the ones above within 10 s")
    ]


def test_memory_is_bounded() -> None:
    counted = Repeats(Clock())
    for number in range(5000):
        counted.admit(("ERROR", "server.py", number), f"failure {number}")
    assert len(counted._messages) <= repeats.MAX_MESSAGES


def test_once_is_not_a_repetition() -> None:
    clock = Clock()
    counted = Repeats(clock)
    assert counted.admit(PLACE, "down")
    clock.now_s += repeats.WINDOW_S
    assert counted.pop_due() == []
