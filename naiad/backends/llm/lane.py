"""Threads of a worker that prepare requests, so that neither the work loop nor the engine waits.

Rule: what runs here spends its time in libraries that release the interpreter (the tokenizer, the
      grammar compiler) or in another process. Work in Python would slow down every step of the
      engine, which asks for the interpreter hundreds of times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Lane:
    def __init__(self, name: str, num_threads: int) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"llm-{name}-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Runs `work`, which must not raise, when a thread is free."""
        self._work.put(work)

    def close(self) -> None:
        """Lets the threads end after what they are doing. Does not wait."""
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
