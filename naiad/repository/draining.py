"""Copies of a model that serve no more: they finish what they have, are finalized, and go. In the background, but never forgotten.

A request that somebody waits for may take as long as it needs; one whose caller has gone keeps nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from naiad.repository.model import Model

FINALIZE_TIMEOUT_S = 30.0


class Drains:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, model: Model, on_end: Callable[[], None] = lambda: None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(model, on_end))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Returns when every copy is gone."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, model: Model, on_end: Callable[[], None]) -> None:
        try:
            await model.stop(FINALIZE_TIMEOUT_S)
        finally:
            on_end()
