"""Poll mode: loads and removes models when the repositories change.

In:  the files of all models, every --repository-poll-secs, and sooner while something is changing.
     Out: loads and removals, through operations.py.
Rules: polling continues, no matter what is wrong with a model or a repository. The next poll does
       not wait for models that are still loading.
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
from naiad.repository.watch.watch import Changes, Fingerprints, Watch

RECHECK_S = 1.0
"""The time to the next poll after one that saw a change, if the poll interval is longer."""


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

    def start(self, fingerprints: Fingerprints, failed: set[str]) -> None:
        """`fingerprints` were read before the models were loaded; `failed` are the names of the
        models that could not be loaded."""
        self._watch.start(fingerprints, {key for key in fingerprints if name_of(key) in failed})
        self._spawn(self._run())

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            is_soon = self._watch.is_changing
            await self._sleep(min(RECHECK_S, self._interval_s) if is_soon else self._interval_s)
            try:
                fingerprints = await asyncio.to_thread(self._read_fingerprints)
                self._apply(self._watch.changes(fingerprints, self._busy))
            except NaiadError as error:
                log.error(f"failed to poll the model repositories: {error.message}")

    def _read_fingerprints(self) -> Fingerprints:
        self._sources.refresh()
        return self._sources.fingerprints()

    def _apply(self, changes: Changes) -> None:
        for key in changes.remove:
            self._busy.add(key)
            self._spawn(self._remove(key))
        if changes.load:
            self._busy.update(changes.load)
            self._spawn(self._reload(changes.load))

    async def _reload(self, keys: list[str]) -> None:
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error(f"failed to apply a change of the model repositories: {task.exception()!r}")
