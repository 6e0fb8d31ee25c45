"""The one thread of a worker that opens a language model and then runs its engine.

Libraries keep a pool of threads for each thread that computes: with two pools on the same cores
their threads stop spinning and every parallel section waits for the kernel (measured: a quarter of
a step on two cores). So what computes, computes here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class EngineThread:
    def __init__(self) -> None:
        self._work: SimpleQueue[
            tuple[Callable[[], Any], SimpleQueue[tuple[Any, BaseException | None]]] | None
        ] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="llm-engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Result]) -> Result:
        """Waits for it, and raises what it raises."""
        answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._work.put((function, answer))
        result, error = answer.get()
        if error is not None:
            raise error
        found: Result = result
        return found

    def start(self, function: Callable[[], None]) -> None:
        """The last thing that it does; `function` raises nothing."""
        self._work.put((function, SimpleQueue()))
        self._work.put(None)

    def end(self) -> None:
        """When there is nothing to start."""
        self._work.put(None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            function, answer = work
            try:
                answer.put((function(), None))
            except BaseException as error:
                answer.put((None, error))
