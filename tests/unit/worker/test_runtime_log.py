"""Log lines of a worker have the place that they come from."""

from __future__ import annotations

import sys

from naiad.ipc.messages import LogLine
from naiad.worker.runtime import WorkerRuntime


class Channel:
    def __init__(self) -> None:
        self.sent: list[LogLine] = []

    def send(self, message: LogLine) -> None:
        self.sent.append(message)


def test_a_line_without_a_place_gets_its_callers() -> None:
    channel = Channel()
    runtime = object.__new__(WorkerRuntime)
    runtime._channel = channel  # type: ignore[assignment]
    line = sys._getframe().f_lineno + 1
    runtime.log("ERROR", "message", "elsewhere.py", 0)
    runtime.log("ERROR", "message", "model.py", 7)
    assert [(sent.file, sent.line) for sent in channel.sent] == [
        ("test_runtime_log.py", line),
        ("model.py", 7),
    ]
