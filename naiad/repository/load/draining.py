"""Copies that no longer serve: each finishes the requests that it has, is finalized, and stops.

This happens in background tasks, which `finish` waits for. A request that a client waits for may
take as long as it needs; a request whose client has disconnected does not delay the end.
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

    def start(
        self, model: Model, on_stopped: Callable[[], None] = lambda: None
    ) -> asyncio.Task[None]:
        # Not in the task: when the client reads that the model is unloaded or replaced, no other
        # worker may still call these instances directly.
        for instance in model.instances:
            instance.loan.is_allowed = False
            instance.loan.recall()
        return self._run(self._stop(model, on_stopped))

    def retire(self, model: Model, instance: Instance) -> asyncio.Task[None]:
        """Stops one instance of a model that keeps serving without it."""
        return self._run(model.retire(instance, FINALIZE_TIMEOUT_S))

    async def finish(self) -> None:
        """Returns when every copy has stopped."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stop(self, model: Model, on_stopped: Callable[[], None]) -> None:
        try:
            await model.stop(FINALIZE_TIMEOUT_S)
        finally:
            on_stopped()
