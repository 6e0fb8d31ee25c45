"""The worker's own steps, in this process, with a backend that does nothing."""

from __future__ import annotations

import gc
import os
import socket
import threading

import msgspec
import pytest

from naiad.backends.backend import Backend, Runtime
from naiad.ipc.framing import Link
from naiad.ipc.messages import Failed, Load, Loaded, Message, Ping, Pong, Started, ToServer, Unload
from naiad.ipc.readiness import NOT_READY, QUESTION, READY
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from naiad.shm.arena import Arena
from naiad.worker.channel import ANCILLARY_BYTES, READ_BYTES, descriptors
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


class Hooked(Nothing):
    """A backend that says whether it is ready, when the test allows it."""

    has_ready_hook = True

    def __init__(self) -> None:
        super().__init__([])
        self.num_runs = 0
        self.may_reply = threading.Event()
        self.is_fit = True

    def is_ready(self) -> bool:
        self.num_runs += 1
        self.may_reply.wait()
        if not self.is_fit:
            raise ValueError("engine died")
        return True


class Server:
    """The server's end of a worker that runs in a thread of this process."""

    def __init__(self, backend: Backend) -> None:
        self.sock, theirs = socket.socketpair()
        self._link: Link[ToServer] = Link(msgspec.msgpack.Decoder(ToServer), Arena())
        self._messages: list[ToServer] = []
        self._worker = Worker(theirs, backend)
        self._thread = threading.Thread(target=self._worker.run)
        self._thread.start()

    def send(self, message: Message) -> None:
        out = bytearray()
        self._link.pack(message, out)
        self.sock.sendall(out)

    def receive(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        while True:
            for message in self._messages:
                if isinstance(message, kind):
                    self._messages.remove(message)
                    return message
            data, ancillary, _, _ = self.sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
            self._messages += self._link.feed(memoryview(data), descriptors(ancillary))

    def pop_fd(self) -> int:
        return self._link.pop_fd()

    def stop(self) -> None:
        self.send(Unload())
        self._thread.join(60)
        self.sock.close()
        self._worker.channel.sock.close()


def test_a_ping_does_not_run_the_hook_and_the_hook_does_not_delay_a_ping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("naiad.worker.worker._name_process", lambda name: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(
        "naiad.worker.worker.redirect_output", lambda: os.open(os.devnull, os.O_RDONLY)
    )
    backend = Hooked()
    server = Server(backend)
    server.receive(Started)
    for _ in range(2):  # of the process, and of what the model prints
        os.close(server.pop_fd())
    server.send(Load(LoadArguments("m", 1, "/nowhere", "m_0", "CPU", 0, b"{}")))
    assert server.receive(Loaded) == Loaded(False, True)
    with socket.socket(fileno=server.pop_fd()) as questions:
        server.send(Ping(1))
        assert server.receive(Pong) == Pong(1)
        assert backend.num_runs == 0
        questions.send(QUESTION)
        server.send(Ping(2))
        assert server.receive(Pong) == Pong(2), "while the hook runs"
        backend.may_reply.set()
        assert questions.recv(10) == READY
        backend.is_fit = False
        questions.send(QUESTION)
        assert questions.recv(10) == NOT_READY
        assert backend.num_runs == 2
    server.stop()
