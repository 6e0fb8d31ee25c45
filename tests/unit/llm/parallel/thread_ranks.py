"""Ranks as threads of the test's own process: the code of rank_process.py without the seconds that
a new process takes to import torch."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from naiad.llm.engine import Engine
from naiad.llm.parallel import rank_group, rank_process
from tests.unit.llm.engines import small_engine


class ThreadRank:
    """The part of Popen that RankGroup uses."""

    pid = 0

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel.dup()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._channel:
                rank_process.run(self._channel)
        except BaseException as error:
            self.error = error

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("rank", timeout or 0.0)
        return 0 if self.error is None else 1

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def kill(self) -> None:
        """Its channel is closed already, which ends it."""


Open = Callable[..., Engine]


@contextmanager
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Gives a function that opens engines, all of which are closed at the end."""
    monkeypatch.setattr(rank_group, "start_process", lambda channel: cast(Any, ThreadRank(channel)))
    opened: list[Engine] = []

    def open_engine(folder: Path, **values: Any) -> Engine:
        opened.append(small_engine(folder, **values))
        return opened[-1]

    try:
        yield open_engine
    finally:
        for engine in opened:
            if engine.ranks is not None:
                engine.ranks.close()
