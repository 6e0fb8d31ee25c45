"""Poll mode: follows what changes in the repositories.

In:  the disk, every --repository-poll-secs, and sooner while something is changing. Out: loads and
     unloads, through operations.py.
Rule: nothing that is wrong with a model, or with a whole repository, ends the polling. Models load
      beside the next looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from naiad import log
from naiad.errors import NaiadError
from naiad.repository.load.operations import Operations
from naiad.repository.model_source import ModelSources
from naiad.repository.namespace import name_of
from naiad.repository.watch.watch import Changes, Look, Watch

SETTLE_S = 1.0


class Poll:
    def __init__(
        self,
        sources: ModelSources,
        operations: Operations,
        interval_s: float,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sources = sources
        self._operations = operations
        self._interval_s = interval_s
        self._sleep = sleep
        self._watch = Watch()
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, look: Look, failed: set[str]) -> None:
        """`look` was taken before the models in it were loaded; `failed` are the names of those
        that were not."""
        self._watch.start(look, {key for key in look if name_of(key) in failed})
        self._own(self._run())

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._sleep(
                min(SETTLE_S, self._interval_s) if self._watch.is_unsettled else self._interval_s
            )
            try:
                self._apply(self._watch.changes(await asyncio.to_thread(self._look), self._busy))
            except NaiadError as error:
                log.error(f"failed to poll the model repositories: {error.message}")

    def _look(self) -> Look:
        self._sources.refresh()
        return self._sources.look()

    def _apply(self, changes: Changes) -> None:
        for key in changes.gone:
            self._busy.add(key)
            self._own(self._remove(key))
        if changes.load:
            self._busy.update(changes.load)
            self._own(self._load(changes.load))

    async def _load(self, keys: list[str]) -> None:
        try:
            failures = await self._operations.reload_all({name_of(key) for key in keys})
            for key in keys:
                error = failures.get(name_of(key))
                self._watch.report(key, is_failed=error is not None)
                if error is not None:
                    log.error(f"failed to load '{name_of(key)}': {error.message}")
        finally:
            self._busy.difference_update(keys)

    async def _remove(self, key: str) -> None:
        try:
            await self._operations.remove(key)
        finally:
            self._busy.discard(key)

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(f"following a change of the model repositories failed: {task.exception()!r}")
