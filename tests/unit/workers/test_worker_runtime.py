"""A batch that came from another worker: the server is told that it is here before anything is asked or answered for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from naiad.core.tensor import Tensor
from naiad.core.work import ControlOperation, Way, WorkResponse
from naiad.workers.messages import Answer, Control, Response, Stays
from naiad.workers.worker_runtime import WorkerRuntime

WAY = Way(7, [(1, 2, 3)])


class Channel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.before_sending: Callable[[object], None] = lambda message: None
        self.on_event: Callable[[Any], None] = lambda message: None

    def send(self, message: object, tensors: list[Tensor] | None = None) -> None:
        self.before_sending(message)
        self.sent.append(message)

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        (question,) = [message.question for message in self.sent if isinstance(message, Control)]
        self.on_event(Answer(question, 1.0))
        assert is_done()


def guest() -> tuple[WorkerRuntime, Channel]:
    channel: Any = Channel()
    runtime = WorkerRuntime(channel)
    runtime.open.update((1, 2))
    runtime.guest = 5, WAY
    return runtime, channel


def test_an_answer_of_another_thread_does_not_overtake_the_word_that_the_batch_is_here() -> None:
    runtime, channel = guest()
    other = threading.Thread(target=lambda: runtime.respond(2, WorkResponse(), True))

    def while_sending(message: object) -> None:
        if isinstance(message, Stays):
            other.start()
            other.join(0.1)  # long enough to overtake, if it could

    channel.before_sending = while_sending
    runtime.respond(1, WorkResponse(), True)
    other.join()
    assert channel.sent[0] == Stays(5, WAY)
    assert sorted(message.handle for message in channel.sent[1:] if isinstance(message, Response)) == [1, 2]
    assert runtime.take_guest() is None


def test_a_model_that_loads_or_unloads_others_has_the_batch_itself_by_then() -> None:
    runtime, channel = guest()
    assert runtime.control(ControlOperation("unload", "m"))
    assert [type(message) for message in channel.sent] == [Stays, Control]
