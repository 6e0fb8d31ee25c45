"""Runs a model's own `is_ready` hook. A hook that raises or returns anything but a bool means that
the model is not ready; the server decides how long it waits for the result."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from naiad.backends.python.instance import Instance
from naiad.backends.python.model_fault import log_lines, place


class ReadyCheck:
    def __init__(self, hook: Callable[[], Any], instance: Instance) -> None:
        self._hook = hook
        self._instance = instance

    def check(self) -> bool:
        """Blocks as long as the hook does."""
        try:
            result = self._hook()
            if hasattr(result, "__await__"):
                result = asyncio.run(_as_coroutine(result))
            return self._checked(result)
        except BaseException as error:
            return self._report(error)

    async def check_async(self) -> bool:
        """Awaits a coroutine hook on the event loop of `async def execute`. Any other hook runs in
        a thread."""
        if not inspect.iscoroutinefunction(self._hook):
            return await asyncio.to_thread(self.check)
        try:
            return self._checked(await self._hook())
        except Exception as error:
            return self._report(error)

    def _checked(self, result: object) -> bool:
        if isinstance(result, bool):
            return result
        self._instance.log("ERROR", "is_ready() must return a boolean value")
        return False

    def _report(self, error: BaseException) -> bool:
        message = f"is_ready() of model '{self._instance.name}' failed: {log_lines(error)}"
        self._instance.runtime.log("ERROR", message, *place(error))
        return False


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
