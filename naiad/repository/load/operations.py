"""Loading, reloading and unloading: what changes the set of models that serve.

In:  a model name, what a load request brought along. Out: entries with new copies of the model, old
     copies drained in the background.
Rules: a load makes the new copy ready before the old one goes, and a failed load changes nothing
       that serves. Related models take turns, others load side by side, up to a limit. An ensemble
       loads after its parts, is made anew when one of them was, and goes when one of them goes, to
       return with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from naiad import log
from naiad.errors import NaiadError, invalid_arg, unavailable
from naiad.repository.entry import Entry
from naiad.repository.load.draining import Drains
from naiad.repository.load.lifecycle import State
from naiad.repository.load.load_locks import Turn, Turns, conflict
from naiad.repository.load.load_plan import LoadPlan, copy_of, is_unloaded_first, plan_load
from naiad.repository.load.load_scope import Node, Survey
from naiad.repository.load.loader import Loader
from naiad.repository.load.switch import Switch, failures
from naiad.repository.load.version_load import Loaded, VersionLoads
from naiad.repository.model_source import ModelSource, ModelSources, Override
from naiad.repository.namespace import Entries


class OperationOptions(msgspec.Struct, frozen=True):
    max_concurrent_loads: int = 4
    load_retry_count: int = 0


class Operations:
    def __init__(
        self, entries: Entries, sources: ModelSources, loader: Loader, options: OperationOptions
    ) -> None:
        self._entries = entries
        self._sources = sources
        self._loader = loader
        self._survey = Survey(entries, sources)
        self._loads = VersionLoads(sources, loader, retry_count=options.load_retry_count)
        self._switch = Switch(entries, Drains())
        self._turns = Turns()
        self._slots = asyncio.Semaphore(max(options.max_concurrent_loads, 1))
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_stopping = False

    # Several models: at start, and what polling found.

    async def load_all(self, names: Iterable[str]) -> dict[str, NaiadError]:
        """Those that failed. Each ensemble waits for those of its parts that are among them;
        nothing waits for anything else."""
        wanted, parts = await self._with_parts(set(names))
        tasks: dict[str, asyncio.Task[NaiadError | None]] = {}

        async def load(name: str) -> NaiadError | None:
            earlier = [tasks[part] for part in parts[name] if part in tasks]
            if earlier:
                await asyncio.wait(earlier)
            try:
                await self._load(name, {}, "", is_one_of_many=True)
            except NaiadError as error:
                return error
            return None

        for name in sorted(wanted):
            tasks[name] = asyncio.ensure_future(load(name))
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

    async def _with_parts(self, names: set[str]) -> tuple[set[str], dict[str, set[str]]]:
        """These and the models that the ensembles among them call; and by name, whom it calls."""
        wanted = set(names)
        while True:
            parts = await asyncio.to_thread(self._survey.parts_of, wanted)
            new = {part for called in parts.values() for part in called} - wanted
            if new:
                await asyncio.to_thread(self._sources.refresh, new)
                new = {part for part in new if self._sources.places(part)}
            if not new:
                return wanted, parts
            wanted |= new

    # One model.

    async def load(self, name: str, parameters: dict[str, str | bytes], caller: str = "") -> None:
        """Returns when the new copy serves. Raises NaiadError. `caller` is the instance whose model
        asked for it, if one did."""
        await self._owned(self._load(name, parameters, caller))

    async def unload(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        """Returns when the model takes no more requests; it goes when those in flight are done."""
        await self._owned(self._unload(name, unload_dependents, caller))

    async def remove(self, key: str) -> None:
        """The model's directory is gone. Its ensembles go too, and return when it does."""
        await self._owned(self._remove(key))

    async def _owned(self, work: Coroutine[Any, Any, None]) -> None:
        """A caller that goes away does not undo its request; the end of the server does."""
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

    # Loading.

    async def _load(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        caller: str,
        *,
        is_one_of_many: bool = False,
    ) -> None:
        """One of many: its parts are loaded for themselves, and remote repositories have just been
        asked for all of them."""
        if not is_one_of_many:
            await asyncio.to_thread(self._sources.refresh, [name])
        override = (
            await asyncio.to_thread(self._sources.override, name, parameters)
            if parameters
            else Override()
        )
        nodes: list[Node] = []

        async def survey() -> set[str]:
            nodes[:] = await asyncio.to_thread(
                self._survey.nodes, name, override, not is_one_of_many
            )
            return self._survey.related(nodes)

        try:
            async with self._turns.take(survey, caller) as turn:
                await self._load_nodes(nodes, turn)
        finally:
            if override.folder is not None:
                override.folder.drop_if_unheld()

    async def _load_nodes(self, nodes: list[Node], turn: Turn) -> None:
        """Parts first; those of the same depth side by side. Raises what went wrong with the models
        that were asked for."""
        failures: list[NaiadError] = []
        for depth in sorted({node.depth for node in nodes}):
            due = [node for node in nodes if node.depth == depth]
            results = await asyncio.gather(
                *(self._load_node(node, turn) for node in due), return_exceptions=True
            )
            for node, result in zip(due, results, strict=True):
                if isinstance(result, NaiadError) and node.is_asked:
                    failures.append(result)
                elif isinstance(result, NaiadError):
                    log.error(
                        f"model '{node.name}', a part of what is being loaded: {result.message}"
                    )
                elif isinstance(result, BaseException):
                    raise result
        if failures:
            raise failures[0]

    async def _load_node(self, node: Node, turn: Turn) -> None:
        entry = self._entries.add(node.key, node.name, node.namespace)
        if node.is_asked:
            entry.is_explicit = True
        if node.source is None:
            assert node.error is not None
            self._on_unreadable(entry, node.error)
            raise node.error
        if await self._load_source(entry, node.source, turn):
            await self._renew_ensembles(entry, turn)

    def _on_unreadable(self, entry: Entry, error: NaiadError) -> None:
        entry.failure = str(error.__cause__ or error.message)
        if not entry.models and not entry.statuses and not self._sources.places(entry.name):
            self._entries.remove(entry.key)

    async def _load_source(
        self, entry: Entry, source: ModelSource, turn: Turn, *, is_forced: bool = False
    ) -> bool:
        """False when nothing had to be done. Raises NaiadError."""
        plan = plan_load(entry.origins if entry.models else {}, source, is_forced=is_forced)
        if plan.is_empty:
            return False
        entry.is_wanted = True
        if source.config.HasField("ensemble_scheduling"):
            self._load_ensemble(entry, source, plan)
            return True
        if turn.parent is not None:  # its parent holds a slot and waits for it
            await self._load_plan(entry, source, plan, turn)
        else:
            async with self._slots:
                await self._load_plan(entry, source, plan, turn)
        return True

    async def _load_plan(
        self, entry: Entry, source: ModelSource, plan: LoadPlan, turn: Turn
    ) -> None:
        try:
            await self._unload_first(entry, source, plan, turn)
            await self._load_planned(entry, source, plan, turn)
        finally:
            entry.is_between_copies = False

    async def _load_planned(
        self, entry: Entry, source: ModelSource, plan: LoadPlan, turn: Turn
    ) -> None:
        for version in plan.load:
            log.info(f"loading: {entry.name}:{version}")
            status = entry.status(version)
            if status.state is not State.READY:
                status.become(State.LOADING)
        groups = {group.name for group in source.config.instance_group}
        turn.starting |= groups
        try:
            loaded: Loaded = await self._loads.load(source, plan.load) if plan.load else {}
            if plan.resize and not failures(loaded):
                loaded |= await self._resize(entry, source, plan.resize)
        except BaseException:
            for version in plan.load:
                if entry.status(version).state is State.LOADING:
                    entry.status(version).become(State.UNAVAILABLE, "unloaded")
            raise
        finally:
            turn.starting -= groups
        self._switch.apply(entry, source, plan, loaded)

    async def _unload_first(
        self, entry: Entry, source: ModelSource, plan: LoadPlan, turn: Turn
    ) -> None:
        """Of a model that says that two copies have no room."""
        old = {version: model for version, model in entry.models.items() if version in plan.load}
        if old and is_unloaded_first(source.config, *(model.config for model in old.values())):
            if any(
                instance.name == turn.caller
                for model in old.values()
                for instance in model.instances
            ):
                raise conflict({entry.key})  # it would wait for the request that asks for it
            entry.is_between_copies = True
            await asyncio.gather(*self._switch.retire(entry, set(old)))

    async def _resize(self, entry: Entry, source: ModelSource, versions: list[int]) -> Loaded:
        """More or fewer instances, in place; where the scheduler cannot, the version is loaded
        anew."""
        result: Loaded = {}
        for version in versions:
            model = entry.models[version]
            try:
                gone = await self._loader.resize(
                    model, list(source.config.instance_group), source.directory
                )
            except NaiadError as error:
                result[version] = error
                continue
            if gone is None:
                result |= await self._loads.load(source, [version])
            for instance in gone or ():
                self._switch.retire_instance(model, instance)
        return result

    def _load_ensemble(self, entry: Entry, source: ModelSource, plan: LoadPlan) -> None:
        """An ensemble that does not fit its parts was never a model, under Triton: it has no state,
        only a reason."""
        entry.part_keys = self._survey.part_keys(source)
        entry.source = source
        try:
            parts = self._survey.parts(source)
            infer = self._survey.infer_in(source, self._loader.infer)
            loaded: Loaded = {
                version: self._loader.load_ensemble(
                    copy_of(source.config), version, source.versions, source.directory, parts, infer
                )
                for version in plan.load
            }
        except NaiadError as error:
            entry.failure = error.message
            entry.returns_with_parts = True
            raise invalid_arg(f"load failed for model '{entry.name}': {error.message}\n") from error
        entry.returns_with_parts = False
        for version in loaded:
            if entry.status(version).state is not State.READY:
                entry.status(version).become(State.LOADING)
        self._switch.apply(entry, source, plan, loaded)

    # Ensembles follow their parts.

    async def _renew_ensembles(self, part: Entry, turn: Turn) -> None:
        """Their plan holds what they know about the part; and some were waiting for it."""
        for entry in self._entries:
            if (
                part.key in entry.part_keys
                and entry is not part
                and (entry.models or entry.returns_with_parts)
            ):
                assert entry.source is not None
                try:
                    await self._load_source(entry, entry.source, turn, is_forced=True)
                except NaiadError as error:
                    log.error(
                        f"ensemble '{entry.name}' does not fit its model '{part.name}': {error.message}"
                    )
                else:
                    await self._renew_ensembles(entry, turn)

    # Unloading.

    async def _unload(self, name: str, unload_dependents: bool, caller: str) -> None:
        async def survey() -> set[str]:
            return self._survey.unload_keys(name, unload_dependents) or {name}

        async with self._turns.take(survey, caller):
            for entry in self._entries.named(name):
                self._unload_entry(entry)
                if unload_dependents:
                    self._unload_parts(entry)

    async def _remove(self, key: str) -> None:
        async def survey() -> set[str]:
            return self._survey.with_users({key})

        async with self._turns.take(survey):
            entry = self._entries.by_key.get(key)
            if entry is not None:
                self._unload_entry(entry)

    def _unload_entry(self, entry: Entry) -> None:
        entry.is_wanted = entry.is_explicit = entry.returns_with_parts = False
        self._switch.retire(entry, set(entry.models))
        for other in self._entries:
            if entry.key in other.part_keys and other.models:
                is_explicit = other.is_explicit
                self._unload_entry(other)
                other.is_explicit, other.returns_with_parts = is_explicit, True

    def _unload_parts(self, ensemble: Entry) -> None:
        """Those that nobody asked for by name and that no other ensemble needs."""
        for key in ensemble.part_keys:
            part = self._entries.by_key.get(key)
            is_needed = any(key in other.part_keys and other.models for other in self._entries)
            if part is not None and not part.is_explicit and not is_needed:
                self._unload_entry(part)
                self._unload_parts(part)

    # The end.

    async def stop(self) -> None:
        """Gives up what is loading, then finalizes every copy, ensembles before the models that
        they call."""
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
