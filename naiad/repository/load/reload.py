"""A reload: new copies of a model are started, replace the old copies, and ensembles follow.

In:  the name of a model, and what the load request contained. Out: an entry whose new copies serve.
     The first load of a model is a reload that finds no old copies.
Rules: a new copy is ready before the old one stops, and a reload that fails changes nothing that
       serves. An ensemble is loaded after its parts, and rebuilt when one of them was reloaded.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import msgspec

from naiad import log
from naiad.errors import NaiadError, invalid_arg
from naiad.repository.config.override_check import OverrideRefusedError
from naiad.repository.entry import Entry
from naiad.repository.load.copies import Copies, CopyStarter, failures
from naiad.repository.load.ensemble_parts import EnsembleParts
from naiad.repository.load.load_locks import LoadLock, LoadLocks, conflict
from naiad.repository.load.load_scope import LoadScopes, Node
from naiad.repository.load.loader import Loader
from naiad.repository.load.reload_plan import ReloadPlan, copy_of, is_unloaded_first, plan_reload
from naiad.repository.load.switch import Switch
from naiad.repository.model_source import ModelSources, Override
from naiad.repository.namespace import Entries


class ReloadOptions(msgspec.Struct, frozen=True):
    max_concurrent_loads: int = 4
    load_retry_count: int = 0


class Reloader:
    def __init__(
        self,
        entries: Entries,
        sources: ModelSources,
        loader: Loader,
        locks: LoadLocks,
        switch: Switch,
        options: ReloadOptions,
    ) -> None:
        self._entries = entries
        self._sources = sources
        self._loader = loader
        self._locks = locks
        self._switch = switch
        self._parts = EnsembleParts(entries, sources)
        self.scopes = LoadScopes(entries, sources, self._parts)
        self._starter = CopyStarter(sources, loader, retry_count=options.load_retry_count)
        self._slots = asyncio.Semaphore(max(options.max_concurrent_loads, 1))

    # A reload in three functions.

    async def reload(
        self, name: str, override: Override, caller: str = "", *, should_load_parts: bool = True
    ) -> None:
        """Returns when the new copies serve. Raises NaiadError if a model failed that the request
        named. `caller` is the instance whose model made the request, if one did."""
        find_scope = partial(
            self.scopes.of_load, name, override, should_load_parts=should_load_parts
        )
        async with self._locks.acquire(find_scope, caller) as lock:
            errors: list[NaiadError] = []
            for layer in lock.scope.layers():
                results = await asyncio.gather(
                    *(self._reload_model(node, lock) for node in layer), return_exceptions=True
                )
                errors += _requested_errors(layer, results)
            if errors:
                raise errors[0]

    async def _reload_model(self, node: Node, lock: LoadLock) -> None:
        """Raises NaiadError; what served before still serves then."""
        if isinstance(node.error, OverrideRefusedError):
            raise node.error
        entry = self._entries.add(node.key, node.name, node.namespace)
        entry.is_explicit |= node.is_requested
        if node.source is None:
            raise self._unreadable(entry, node)
        entry.forget_missing(node.source.file.versions)
        serving = entry.origins if entry.models else {}
        broken = {version for version, model in entry.models.items() if model.breakdown}
        plan = plan_reload(serving, node.source, broken=broken, is_forced=node.is_forced)
        if plan.is_empty:
            return
        entry.is_wanted = True
        retiring: list[asyncio.Task[None]] = []
        copies = await self._start_copies(entry, plan, lock, retiring)
        self._switch.swap_in(entry, plan, copies)
        await self._rebuild_ensembles(entry, lock)
        # An instance that is removed may wait for a call of the model that requested this load.
        if retiring and not lock.caller:
            await asyncio.wait(retiring)

    async def _start_copies(
        self, entry: Entry, plan: ReloadPlan, lock: LoadLock, retiring: list[asyncio.Task[None]]
    ) -> Copies:
        """Starts a copy of each version that needs one, and resizes versions in place. Adds a task
        to `retiring` for each instance that is removed and will soon have been finalized."""
        if plan.source.is_ensemble:
            return self._build_ensemble(entry, plan)
        async with self._slot(lock):
            try:
                await self._make_room(entry, plan, lock)
                return await self._start_versions(entry, plan, lock, retiring)
            finally:
                entry.is_between_copies = False

    # The steps of _start_copies, and its errors.

    def _unreadable(self, entry: Entry, node: Node) -> NaiadError:
        assert node.error is not None
        entry.failure = str(node.error.__cause__ or node.error.message)
        if not entry.models and not entry.statuses and not self._sources.places(entry.name):
            self._entries.remove(entry.key)
        return node.error

    def _slot(self, lock: LoadLock) -> contextlib.AbstractAsyncContextManager[Any]:
        """Limits how many models start at the same time. A load that a starting model requested
        needs no slot of its own: that model holds one while it waits."""
        return self._slots if lock.parent is None else contextlib.nullcontext()

    async def _make_room(self, entry: Entry, plan: ReloadPlan, lock: LoadLock) -> None:
        """Stops the old copies first, if the config says that two copies do not fit."""
        old = {version: model for version, model in entry.models.items() if version in plan.start}
        configs = [model.config for model in old.values()]
        if not old or not is_unloaded_first(plan.source.config, *configs):
            return
        instances = [instance for model in old.values() for instance in model.instances]
        if any(instance.name == lock.caller for instance in instances):
            # The old copy would wait for the request that asked for this reload.
            raise conflict(frozenset({entry.key}))
        entry.is_between_copies = True
        await asyncio.gather(*self._switch.retire(entry, set(old)))

    async def _start_versions(
        self, entry: Entry, plan: ReloadPlan, lock: LoadLock, retiring: list[asyncio.Task[None]]
    ) -> Copies:
        for version in plan.start:
            log.info(f"loading: {entry.name}:{version}")
        entry.begin_loading(plan.start)
        groups = {group.name for group in plan.source.config.instance_group}
        lock.starting |= groups
        try:
            copies = await self._starter.start(plan.source, plan.start)
            if plan.resize and not failures(copies):
                copies |= await self._resize(entry, plan, retiring)
            return copies
        except BaseException:
            entry.abandon_loading(plan.start)
            raise
        finally:
            lock.starting -= groups

    async def _resize(
        self, entry: Entry, plan: ReloadPlan, retiring: list[asyncio.Task[None]]
    ) -> Copies:
        """Adds and removes instances in place. A version whose scheduler cannot do that gets a new
        copy."""
        copies: Copies = {}
        groups = list(plan.source.config.instance_group)
        for version in plan.resize:
            model = entry.models[version]
            try:
                removed = await self._loader.resize(model, groups, plan.source.directory)
            except NaiadError as error:
                copies[version] = error
                continue
            if removed is None:
                copies |= await self._starter.start(plan.source, [version])
            for instance in removed or ():
                is_held = model.holds_sequences(instance)
                task = self._switch.retire_instance(model, instance)
                retiring += [] if is_held else [task]
        return copies

    # Ensembles.

    def _build_ensemble(self, entry: Entry, plan: ReloadPlan) -> Copies:
        """As in Triton, an ensemble that does not fit its parts has no state, only a reason."""
        source = plan.source
        entry.part_keys = self._parts.keys(source)
        entry.source = source
        try:
            models = self._parts.models(source)
            infer = self._parts.infer_in(source, self._loader.infer)
            copies: Copies = {
                version: self._loader.build_ensemble(
                    copy_of(source.config),
                    version,
                    source.versions,
                    source.directory,
                    models,
                    infer,
                )
                for version in plan.start
            }
        except NaiadError as error:
            log.error(f"failed to load '{entry.name}': {error.message}")
            entry.failure = error.message
            entry.returns_with_parts = True
            raise invalid_arg(f"load failed for model '{entry.name}': {error.message}\n") from error
        entry.returns_with_parts = False
        entry.begin_loading(copies)
        return copies

    async def _rebuild_ensembles(self, part: Entry, lock: LoadLock) -> None:
        """Rebuilds the ensembles whose plan describes the replaced copies of this part, those that
        could not be built without it, and those whose steps mean this part now."""
        for entry in self._entries:
            is_affected = part.key in entry.part_keys or self._parts.are_others_meant(entry)
            if is_affected and entry is not part:
                await self._rebuild_ensemble(entry, lock)

    async def relink_ensembles(self, lock: LoadLock) -> None:
        """Rebuilds the ensembles whose steps mean other models since a model was removed."""
        for entry in self._entries:
            if self._parts.are_others_meant(entry):
                await self._rebuild_ensemble(entry, lock)

    async def _rebuild_ensemble(self, entry: Entry, lock: LoadLock) -> None:
        if not entry.models and not entry.returns_with_parts:
            return
        node = Node(entry.key, entry.name, entry.namespace, entry.source, is_forced=True)
        # The log has the reason; the part serves either way.
        with contextlib.suppress(NaiadError):
            await self._reload_model(node, lock)


def _requested_errors(layer: list[Node], results: list[BaseException | None]) -> list[NaiadError]:
    """The errors of models that the request named. The ensemble that needs another model reports
    that model's failure in its own error."""
    errors: list[NaiadError] = []
    for node, result in zip(layer, results, strict=True):
        if isinstance(result, NaiadError):
            errors += [result] if node.is_requested else []
        elif result is not None:
            raise result
    return errors
