"""The end of the log in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from naiad import log
from naiad.console.log_tail import MAX_CHARS, MAX_LINES, LogTail
from naiad.log import Line


@pytest.fixture
def tail() -> Iterator[LogTail]:
    tail = LogTail()
    log.observe(tail.add)
    yield tail
    log.observe(None)


def test_receives_what_is_logged_and_printed(tail: LogTail) -> None:
    log.warning("look out")
    log.printed("m_0", "from the model", 7)
    first, second = tail.after(0)
    assert (first.severity, first.message) == ("WARNING", "look out")
    assert first.origin.startswith("test_log_tail.py:")
    assert (second.origin, second.message) == ("m_0", "from the model")
    assert [line.message for line in tail.after(first.number)] == ["from the model"]
    assert tail.last_number == second.number


def test_a_level_that_is_off_is_not_in_the_tail(tail: LogTail) -> None:
    log.verbose(1, "hidden")
    assert tail.after(0) == []


def test_lines_are_bounded_in_number_and_length() -> None:
    tail = LogTail()
    for _ in range(MAX_LINES + 5):
        tail.add(Line(0, "INFO", "a.py:1", "x" * (MAX_CHARS + 9)))
    lines = tail.after(0)
    assert (len(lines), lines[0].number) == (MAX_LINES, 6)
    assert lines[0].message.endswith("... (9 more characters)")
