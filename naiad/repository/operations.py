"""Loading, reloading and unloading: what changes the set of models that serve.

In:  a model name, what a load request brought along. Out: entries with new copies of the model, old copies drained in the background.
Rules: a load makes the new copy ready before the old one goes, and a failed load changes nothing that serves. Different models load
side by side, up to a limit. An ensemble loads after its parts, is made anew when one of them was, and goes when one of them goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.repository.entry import Entry
from naiad.repository.fingerprint import fingerprint
from naiad.repository.lifecycle import State
from naiad.repository.loader import ConfiguredProcess, Loader
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources

FINALIZE_TIMEOUT_S = 30.0


class OperationOptions(msgspec.Struct, frozen=True):
    max_concurrent_loads: int = 4
    load_retry_count: int = 0


class Operations:
    def __init__(self, entries: dict[str, Entry], sources: ModelSources, loader: Loader, options: OperationOptions) -> None:
        self._entries = entries
        self._sources = sources
        self._loader = loader
        self._options = options
        self._slots = asyncio.Semaphore(max(options.max_concurrent_loads, 1))
        self._background: set[asyncio.Task[None]] = set()

    # Several models.

    async def load_all(self, names: set[str]) -> dict[str, NaiadError]:
        """Those that failed. Plain models first, side by side; then ensembles, each after the ensembles that it calls."""
        failures: dict[str, NaiadError] = {}
        for name in names:
            self._entries.setdefault(name, Entry(name)).is_wanted = True
        ensembles = {name: parts for name in sorted(names) if (parts := self._sources.ensemble_parts(name))}
        await asyncio.gather(*(self._try_load(name, failures) for name in sorted(names - ensembles.keys())))
        while ensembles:
            due = [name for name, parts in ensembles.items() if parts.isdisjoint(ensembles)] or list(ensembles)
            await asyncio.gather(*(self._try_load(name, failures) for name in due))
            for name in due:
                del ensembles[name]
        return failures

    async def _try_load(self, name: str, failures: dict[str, NaiadError]) -> None:
        try:
            await self.load(name, {})
        except NaiadError as error:
            failures[name] = error

    # One model.

    async def load(self, name: str, parameters: dict[str, str | bytes]) -> None:
        """Returns when the new copy serves. Raises NaiadError."""
        for part in sorted(self._sources.ensemble_parts(name, parameters)):
            entry = self._entries.get(part)
            if part != name and (entry is None or entry.latest is None):
                await self._load_part(name, part)
        await self._load_one(name, parameters)
        await self._renew_ensembles(name)

    async def _load_part(self, ensemble: str, part: str) -> None:
        try:
            await self.load(part, {})
        except NaiadError as error:
            log.error(f"model '{part}', which ensemble '{ensemble}' calls, could not be loaded: {error.message}")

    async def _renew_ensembles(self, part: str) -> None:
        """Their plan holds what they know about the part."""
        for entry in list(self._entries.values()):
            if entry.name != part and part in entry.parts:
                try:
                    await self._load_one(entry.name, {}, is_forced=True)
                except NaiadError as error:
                    log.error(f"ensemble '{entry.name}' does not fit its model '{part}' any more: {error.message}")

    async def _load_one(self, name: str, parameters: dict[str, str | bytes], *, is_forced: bool = False) -> None:
        entry = self._entries.setdefault(name, Entry(name))
        async with entry.lock:
            try:
                source = self._sources.read(name, parameters)
            except NaiadError as error:
                self._on_unreadable(entry, error)
                raise internal(f"failed to load '{name}', failed to poll from model repository") from error
            seen = None if parameters else fingerprint(source.directory)
            if entry.models and seen is not None and seen == entry.fingerprint and not is_forced:
                return
            entry.is_wanted = True
            async with self._slots:
                await self._load_source(entry, source)
            entry.fingerprint = seen

    def _on_unreadable(self, entry: Entry, error: NaiadError) -> None:
        log.error(f"Poll failed for model directory '{entry.name}': {error.message}")
        entry.failure = error.message
        if not entry.models and not entry.statuses and not self._sources.has(entry.name):
            del self._entries[entry.name]

    async def _load_source(self, entry: Entry, source: ModelSource) -> None:
        configured: ConfiguredProcess | None = None
        for version in source.versions:
            log.info(f"loading: {entry.name}:{version}")
            status = entry.status(version)
            if status.state is not State.READY:
                status.become(State.LOADING)
        try:
            if source.should_configure:
                configured = await self._loader.configure(source.config, max(source.versions), source.directory)
                source = self._sources.complete(source, configured.config_json)
            loaded = await self._load_versions(source, configured)
        except NaiadError as error:
            if configured is not None:
                await configured.process.kill()
            loaded = dict.fromkeys(source.versions, error)
        except BaseException:
            if configured is not None:
                await configured.process.kill()
            raise
        self._switch(entry, loaded)

    async def _load_versions(self, source: ModelSource, configured: ConfiguredProcess | None) -> dict[int, Model | NaiadError]:
        async def one(version: int) -> Model | NaiadError:
            process = configured if configured is not None and configured.version == version else None
            error: NaiadError = internal("not tried")
            for _ in range(self._options.load_retry_count + 1):
                try:
                    return await self._load_version(source, version, process)
                except NaiadError as failure:
                    error, process = failure, None
            return error

        results = await asyncio.gather(*(one(version) for version in source.versions))
        return dict(zip(source.versions, results, strict=True))

    async def _load_version(self, source: ModelSource, version: int, process: ConfiguredProcess | None) -> Model:
        if not source.config.HasField("ensemble_scheduling"):
            return await self._loader.load(source.config, version, source.versions, source.directory, process)
        parts: dict[str, Model] = {}
        for step in source.config.ensemble_scheduling.step:
            parts[step.model_name] = self._part(source.name, step.model_name, step.model_version)
        return self._loader.load_ensemble(source.config, version, source.versions, source.directory, parts)

    def _part(self, ensemble: str, name: str, version: int) -> Model:
        entry = self._entries.get(name)
        if entry is None or entry.latest is None:
            reason = "" if entry is None else entry.failure or "; ".join(s.reason for s in entry.statuses.values() if s.reason)
            words = f" Model '{name}' loading failed with error: {reason};" if reason else ""
            raise invalid_arg(f"ensemble '{ensemble}' depends on '{name}' which has no loaded version.{words}")
        if version > 0 and version not in entry.models:
            raise invalid_arg(f"ensemble '{ensemble}' depends on '{name}' whose required version {version} is not loaded.")
        return entry.models[version] if version > 0 else entry.latest

    def _switch(self, entry: Entry, loaded: dict[int, Model | NaiadError]) -> None:
        """The new copies serve from here on; the old ones finish what they have. All of it in one turn of the loop."""
        failures = {version: result for version, result in loaded.items() if isinstance(result, NaiadError)}
        models = {version: result for version, result in loaded.items() if isinstance(result, Model)}
        for version, error in failures.items():
            log.error(f"failed to load '{entry.name}' version {version}: {error.code}: {error.message}")
            if entry.status(version).state is State.LOADING:
                entry.status(version).become(State.UNAVAILABLE, f"{error.code}: {error.message}")
        if failures and entry.models:
            # A failed reload keeps what serves: the copies that did load are not needed.
            for version, model in models.items():
                if entry.status(version).state is State.LOADING:
                    entry.status(version).become(State.UNAVAILABLE, "unloaded")
                self.in_background(model.stop(FINALIZE_TIMEOUT_S))
        else:
            self._replace(entry, models)
        if failures:
            words = "".join(f"version {version} is at UNAVAILABLE state: {e.code}: {e.message};\n" for version, e in failures.items())
            raise invalid_arg(f"load failed for model '{entry.name}': {words}")

    def _replace(self, entry: Entry, models: dict[int, Model]) -> None:
        old = entry.models
        for version in models:
            log.info(f"successfully loaded '{entry.name}' version {version}")
            entry.status(version).become(State.READY)
        for version in old.keys() - models.keys():
            entry.status(version).become(State.UNLOADING)
        entry.failure = ""
        entry.set_models(models)
        for version, model in old.items():
            self.in_background(self._drain(entry, version, model))

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Returns when the model takes no more requests; it goes when those in flight are done."""
        entry = self._entries.get(name)
        if entry is None or not entry.models:
            return
        parts = entry.parts
        await self._unload_one(entry)
        for other in list(self._entries.values()):
            if name in other.parts:
                await self._unload_one(other)
        if unload_dependents:
            for part in parts:
                await self.unload(part, unload_dependents=True)

    async def _unload_one(self, entry: Entry) -> None:
        async with entry.lock:
            old = entry.models
            entry.is_wanted = False
            entry.fingerprint = None
            entry.set_models({})
            for version, model in old.items():
                entry.status(version).become(State.UNLOADING)
                self.in_background(self._drain(entry, version, model))

    async def _drain(self, entry: Entry, version: int, model: Model) -> None:
        await model.stop(FINALIZE_TIMEOUT_S)
        status = entry.status(version)
        if status.state is State.UNLOADING and version not in entry.models:
            status.become(State.UNAVAILABLE, "unloaded")
            log.info(f"successfully unloaded '{entry.name}' version {version}")

    # The end.

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def stop(self) -> None:
        """Finalizes every copy, ensembles before the models that they call."""
        models = [model for entry in self._entries.values() for model in entry.models.values()]
        for entry in self._entries.values():
            entry.is_wanted = False
            entry.set_models({})
        for group in ([m for m in models if m.parts], [m for m in models if not m.parts]):
            await asyncio.gather(*(model.stop(FINALIZE_TIMEOUT_S) for model in group))
        if self._background:
            await asyncio.wait(self._background)
