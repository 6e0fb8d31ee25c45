"""Copies of a model that serve no more: they finish what they have, are finalized, and go. In the
background, but never forgotten.

A request that somebody waits for may take as long as it needs; one whose caller has gone keeps
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from naiad.instances.instance import Instance
from naiad.repository.model import Model

FINALIZE_TIMEOUT_S = 30.0


class Drains:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, model: Model, on_end: Callable[[], None] = lambda: None) -> asyncio.Task[None]:
        # now: whoever is told that the model is gone, or another, must find it so
        for instance in model.instances:
            instance.is_lendable = False
            instance.recall()
        return self._own(self._run(model, on_end))

    def retire(self, model: Model, instance: Instance) -> None:
        """Of a model that goes on without it."""
        self._own(model.retire(instance, FINALIZE_TIMEOUT_S))

    async def finish(self) -> None:
        """Returns when every copy is gone."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, model: Model, on_end: Callable[[], None]) -> None:
        try:
            await model.stop(FINALIZE_TIMEOUT_S)
        finally:
            on_end()
