"""The worker's own steps, in this process, with a backend that does nothing."""

from __future__ import annotations

import gc
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.core.work import LoadArguments, PassedBatch, Way, WorkRequest, WorkResponse
from naiad.workers.messages import Executed, Failed, Loaded, Stays
from naiad.workers.worker import Worker


class Nothing:
    def __init__(self, did: list[str]) -> None:
        self._did = did

    def load(self, arguments: LoadArguments, runtime: object) -> None:
        if arguments.model_name == "bad":
            raise ValueError("no such thing")
        self._did.append("load")


@pytest.mark.parametrize(("name", "steps"), [("m", ["load", "collect", "freeze", "Loaded"]), ("bad", ["Failed"])])
def test_what_a_loaded_model_holds_is_no_longer_walked_by_the_collector(
    name: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(theirs, Nothing(did))  # type: ignore[arg-type]
        monkeypatch.setattr(gc, "collect", lambda: did.append("collect"))
        monkeypatch.setattr(gc, "freeze", lambda: did.append("freeze"))
        monkeypatch.setattr("naiad.workers.worker._name_process", lambda name: None)
        monkeypatch.setattr(worker.channel, "send", lambda message: did.append(type(message).__name__))
        worker._load(LoadArguments(name, 1, "/nowhere", "m_0", "CPU", 0, b"{}"))
    assert did == steps
    assert {Loaded.__name__, Failed.__name__} & set(steps)


class Deferring:
    """Leaves every answer to a sender."""

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        return [None for _ in requests]


def test_a_batch_of_a_chain_that_a_sender_answers_is_told_of_before_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    sent: list[object] = []
    with ours, theirs:
        worker = Worker(theirs, Deferring())  # type: ignore[arg-type]
        monkeypatch.setattr(worker.channel, "send", sent.append)
        monkeypatch.setattr(worker.channel, "send_last_use", lambda message, answers, requests: sent.append(message))
        inlet: Any = SimpleNamespace(chain=7)
        worker._execute_passed(inlet, PassedBatch(5, [(1, 2, 3)], [WorkRequest(9, "", [], [])]))
    stays, executed = sent
    assert stays == Stays(5, Way(7, [(1, 2, 3)]))
    assert isinstance(executed, Executed)
    assert (executed.batch, executed.responses, executed.way) == (5, [None], None)
