"""The worker's own steps, in this process, with a backend that does nothing."""

from __future__ import annotations

import gc
import socket

import pytest

from naiad.backends.backend import Backend, Runtime
from naiad.ipc.messages import Failed, Loaded
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.worker.worker import Worker


class Nothing(Backend):
    def __init__(self, did: list[str]) -> None:
        self._did = did

    def load(self, arguments: LoadArguments, runtime: Runtime) -> None:
        if arguments.model_name == "bad":
            raise ValueError("no such thing")
        self._did.append("load")

    def execute(self, requests: list[WorkRequest]) -> list[WorkResponse | None]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "steps"), [("m", ["load", "collect", "freeze", "Loaded"]), ("bad", ["Failed"])]
)
def test_objects_of_a_loaded_model_are_frozen_for_the_collector(
    name: str, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker = Worker(theirs, Nothing(did))
        monkeypatch.setattr(gc, "collect", lambda: did.append("collect"))
        monkeypatch.setattr(gc, "freeze", lambda: did.append("freeze"))
        monkeypatch.setattr("naiad.worker.worker._name_process", lambda name: None)
        monkeypatch.setattr(
            worker.channel, "send", lambda message: did.append(type(message).__name__)
        )
        worker._load(LoadArguments(name, 1, "/nowhere", "m_0", "CPU", 0, b"{}"))
    assert did == steps
    assert {Loaded.__name__, Failed.__name__} & set(steps)
