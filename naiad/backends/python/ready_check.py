"""A model's own `is_ready`, asked with a time limit: a check that hangs or raises means not ready,
never a hung worker."""

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
        """Blocks until there is an answer or the time is up. The hook runs in a thread of its own,
        which may outlive the limit."""
        if self._thread is not None and self._thread.is_alive():
            return False
        answers: list[bool] = []
        self._thread = threading.Thread(
            target=self._run, args=(answers,), name="is_ready", daemon=True
        )
        self._thread.start()
        self._thread.join(self._limit_s)
        return answers[0] if answers else self._give_up()

    async def check_async(self) -> bool:
        """For the event loop that runs `async def execute`: a coroutine hook is awaited on it,
        another gets its thread."""
        if not inspect.iscoroutinefunction(self._hook):
            return await asyncio.get_running_loop().run_in_executor(None, self.check)
        try:
            return self._judge(await asyncio.wait_for(self._hook(), self._limit_s))
        except TimeoutError:
            return self._give_up()
        except Exception as error:
            return self._report(error)

    def _run(self, answers: list[bool]) -> None:
        try:
            answer = self._hook()
            if hasattr(answer, "__await__"):
                answer = asyncio.run(_as_coroutine(answer))
            answers.append(self._judge(answer))
        except BaseException as error:
            answers.append(self._report(error))

    def _judge(self, answer: object) -> bool:
        if isinstance(answer, bool):
            return answer
        self._instance.log("ERROR", "is_ready() must return a boolean value")
        return False

    def _give_up(self) -> bool:
        self._instance.log("ERROR", f"is_ready() did not answer within {self._limit_s:g} s")
        return False

    def _report(self, error: BaseException) -> bool:
        message = f"is_ready() of model '{self._instance.name}' failed: {log_lines(error)}"
        self._instance.runtime.log("ERROR", message, *place(error))
        return False


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable
