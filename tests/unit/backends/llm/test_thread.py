"""The thread that opens a model and then runs its engine."""

from __future__ import annotations

import threading

import pytest

from naiad.backends.llm.thread import EngineThread


def test_everything_happens_on_one_thread() -> None:
    thread = EngineThread()
    first = thread.call(threading.get_ident)
    ran: list[int] = []
    with pytest.raises(ValueError, match="as it is"):
        thread.call(lambda: int("as it is"))
    thread.start(lambda: ran.append(threading.get_ident()))
    thread.join(60)
    assert (ran, thread.is_alive()) == ([first], False)
    assert first != threading.get_ident()


def test_it_ends_when_there_is_nothing_to_start() -> None:
    thread = EngineThread()
    thread.end()
    thread.join(60)
    assert not thread.is_alive()
