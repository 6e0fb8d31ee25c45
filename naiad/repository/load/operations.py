"""The operations that change which models serve: reload, unload, and removal.

In:  the names of models, from clients, from polling and from the start of the server. Out: entries
     with new copies (reload.py), or without any.
Rules: an operation runs to its end even if the client that requested it disconnects. An ensemble is
       unloaded together with any of its parts, and loaded again when that part is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from naiad.errors import NaiadError, internal, unavailable
from naiad.repository.config.override_check import FULL_RIGHTS, OverrideRights
from naiad.repository.entry import Entry
from naiad.repository.load.draining import Drains
from naiad.repository.load.load_locks import LoadLocks
from naiad.repository.load.loader import Loader
from naiad.repository.load.reload import Reloader, ReloadOptions
from naiad.repository.load.switch import Switch
from naiad.repository.model_source import ModelSources, Override
from naiad.repository.namespace import Entries


class Operations:
    def __init__(
        self, entries: Entries, sources: ModelSources, loader: Loader, options: ReloadOptions
    ) -> None:
        self._entries = entries
        self._sources = sources
        self._locks = LoadLocks()
        self._switch = Switch(entries, Drains())
        self._reloader = Reloader(entries, sources, loader, self._locks, self._switch, options)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    # One model, for a client.

    async def reload(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        caller: str = "",
        rights: OverrideRights = FULL_RIGHTS,
    ) -> None:
        """Returns when the new copy serves. Raises NaiadError. `caller` is the instance whose model
        made the request, if one did."""
        await self._run_to_end(self._reload(name, parameters, caller, rights))

    async def unload(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        """Returns when the model accepts no more requests. It stops when those in flight are
        done."""
        await self._run_to_end(self._unload(name, unload_dependents, caller))

    async def remove(self, key: str) -> None:
        """Unloads a model whose directory was deleted."""
        await self._run_to_end(self._remove(key))

    async def _run_to_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Only the end of the server cancels the work, not the end of its caller."""
        if self._is_stopping:
            work.close()
            raise unavailable("Server exiting")
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise unavailable("Server exiting") from None
            raise

    async def _reload(
        self, name: str, parameters: dict[str, str | bytes], caller: str, rights: OverrideRights
    ) -> None:
        await asyncio.to_thread(self._sources.refresh, [name])
        override = Override()
        if parameters:
            override = await asyncio.to_thread(self._sources.override, name, parameters, rights)
        try:
            await self._reloader.reload(name, override, caller)
        finally:
            if override.folder is not None:
                override.folder.drop_if_unheld()

    # Many models, for polling and the start of the server.

    async def reload_all(self, names: Iterable[str]) -> dict[str, NaiadError]:
        """Returns the error of each model that failed. An ensemble waits for those of its parts
        that are reloaded too; no other model waits."""
        order = await self._order(set(names))
        tasks: dict[str, asyncio.Task[NaiadError | None]] = {}
        for name in sorted(order):
            tasks[name] = asyncio.ensure_future(self._reload_after(order[name], name, tasks))
        try:
            results = await asyncio.gather(*tasks.values())
        except BaseException:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            raise
        return {
            name: error for name, error in zip(tasks, results, strict=True) if error is not None
        }

    async def _order(self, names: set[str]) -> dict[str, set[str]]:
        """These models, and the models that the ensembles among them call -> the parts that each of
        them waits for."""
        while True:
            order = await asyncio.to_thread(self._reloader.scopes.waiting_for, names)
            new = {part for parts in order.values() for part in parts} - names
            if new:
                await asyncio.to_thread(self._sources.refresh, new)
                new = {part for part in new if self._sources.places(part)}
            if not new:
                return order
            names = names | new

    async def _reload_after(
        self,
        parts: set[str],
        name: str,
        tasks: Mapping[str, asyncio.Task[NaiadError | None]],
    ) -> NaiadError | None:
        """Reloads a model after its parts. These have tasks of their own, and the caller has just
        refreshed the stores of all of them."""
        earlier = [tasks[part] for part in parts if part in tasks]
        if earlier:
            await asyncio.wait(earlier)
        try:
            await self._reloader.reload(name, Override(), should_load_parts=False)
        except NaiadError as error:
            return error
        except OSError as error:  # such as a disk that is full
            return internal(f"failed to load '{name}': {error}")
        return None

    # Unloading.

    async def _unload(self, name: str, unload_dependents: bool, caller: str) -> None:
        find_scope = partial(
            self._reloader.scopes.of_unload, name, unload_dependents=unload_dependents
        )
        async with self._locks.acquire(find_scope, caller):
            for entry in self._entries.named(name):
                self._unload_entry(entry)
                if unload_dependents:
                    self._unload_parts(entry)

    async def _remove(self, key: str) -> None:
        async with self._locks.acquire(partial(self._reloader.scopes.of_removal, key)) as lock:
            entry = self._entries.by_key.get(key)
            if entry is not None:
                self._unload_entry(entry)
                await self._reloader.relink_ensembles(lock)

    def _unload_entry(self, entry: Entry) -> None:
        """Unloads the model and the ensembles that are made of it. These return with the model."""
        entry.is_wanted = entry.is_explicit = entry.returns_with_parts = False
        self._switch.retire(entry, set(entry.models))
        for other in self._entries:
            if entry.key in other.part_keys and other.models:
                is_explicit = other.is_explicit
                self._unload_entry(other)
                other.is_explicit, other.returns_with_parts = is_explicit, True

    def _unload_parts(self, ensemble: Entry) -> None:
        """Unloads the parts that no client loaded by name and that no other ensemble needs."""
        for key in ensemble.part_keys:
            part = self._entries.by_key.get(key)
            is_needed = any(key in other.part_keys and other.models for other in self._entries)
            if part is not None and not part.is_explicit and not is_needed:
                self._unload_entry(part)
                self._unload_parts(part)

    # The end of the server.

    async def stop(self) -> None:
        """Cancels the operations that are running, then stops every copy, ensembles before the
        models that they call."""
        self._is_stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for is_ensemble in (True, False):
            for entry in self._entries:
                entry.is_wanted = False
                if bool(entry.part_keys) == is_ensemble:
                    self._switch.retire(entry, set(entry.models))
            await self._switch.finish()
