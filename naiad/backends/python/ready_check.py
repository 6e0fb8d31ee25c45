"""Runs a model's own `is_ready` hook, with a time limit.

A hook that hangs or raises means that the model is not ready. It never blocks the worker.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from typing import Any

from naiad.backends.python.instance import Instance
from naiad.backends.python.model_fault import log_lines, place

LIMIT_S = 5.0


class ReadyCheck:
    def __init__(
        self, hook: Callable[[], Any], instance: Instance, limit_s: float = LIMIT_S
    ) -> None:
        self._hook = hook
        self._instance = instance
        self._limit_s = limit_s
        self._thread: threading.Thread | None = None

    def check(self) -> bool:
        """Waits for the result of the hook, or until the time limit.

        The hook runs in a separate thread, which may run on after the limit. The model is not
        ready until it has ended.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        results: list[bool] = []
        self._thread = threading.Thread(
            target=self._run, args=(results,), name="is_ready", daemon=True
        )
        self._thread.start()
        self._thread.join(self._limit_s)
        return results[0] if results else self._give_up()

    async def check_async(self) -> bool:
        """Awaits a coroutine hook on the event loop of `async def execute`.

        Any other hook runs in a thread, as in `check`.
        """
        if not inspect.iscoroutinefunction(self._hook):
            return await asyncio.get_running_loop().run_in_executor(None, self.check)
        try:
            return self._checked(await asyncio.wait_for(self._hook(), self._limit_s))
        except TimeoutError:
            return self._give_up()
        except Exception as error:
            return self._report(error)

    def _run(self, results: list[bool]) -> None:
        try:
            result = self._hook()
            if hasattr(result, "__await__"):
                result = asyncio.run(_as_coroutine(result))
            results.append(self._checked(result))
        except BaseException as error:
            results.append(self._report(error))

    def _checked(self, result: object) -> bool:
        if isinstance(result, bool):
            return result
        self._instance.log("ERROR", "is_ready() must return a boolean value")
        return False

    def _give_up(self) -> bool:
        self._instance.log("ERROR", f"is_ready() did not return within {self._limit_s:g} s")
        return False

    def _report(self, error: BaseException) -> bool:
        message = f"is_ready() of model '{self._instance.name}' failed: {log_lines(error)}"
        self._instance.runtime.log("ERROR", message, *place(error))
        return False


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
