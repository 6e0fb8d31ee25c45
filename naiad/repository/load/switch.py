"""The moment of a reload: new copies take the place of old ones, in one turn of the event loop; the
old ones drain.

In:  what was loaded. Out: an entry whose models and states say who serves now.
Rule: all versions or none. Where one failed, what serves is kept, and what did load is not needed.
"""

from __future__ import annotations

import asyncio
from functools import partial

from naiad import log
from naiad.errors import NaiadError, invalid_arg
from naiad.instances.instance import Instance
from naiad.repository.entry import Entry
from naiad.repository.load.draining import Drains
from naiad.repository.load.lifecycle import State
from naiad.repository.load.load_plan import LoadPlan
from naiad.repository.load.version_load import Loaded
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource
from naiad.repository.namespace import Entries


class Switch:
    def __init__(self, entries: Entries, drains: Drains) -> None:
        self._entries = entries
        self._drains = drains

    def apply(self, entry: Entry, source: ModelSource, plan: LoadPlan, loaded: Loaded) -> None:
        """The new copies serve from here on; the old ones finish what they have. All of it in one
        turn of the loop."""
        failed = failures(loaded)
        for version, error in failed.items():
            log.error(
                f"failed to load '{entry.name}' version {version}: {error.code}: {error.message}"
            )
            if entry.status(version).state is State.LOADING:
                entry.status(version).become(State.UNAVAILABLE, f"{error.code}: {error.message}")
        fresh = {version: result for version, result in loaded.items() if isinstance(result, Model)}
        if failed:
            # All versions or none: what serves is kept, and what did load is not needed.
            for version, model in fresh.items():
                if entry.status(version).state is State.LOADING:
                    entry.status(version).become(State.UNAVAILABLE, "unloaded")
                self._drains.start(model)
            words = "".join(
                f"version {version} is at UNAVAILABLE state: {e.code}: {e.message};\n"
                for version, e in failed.items()
            )
            raise invalid_arg(f"load failed for model '{entry.name}': {words}")
        self._replace(entry, source, plan, fresh)

    def _replace(
        self, entry: Entry, source: ModelSource, plan: LoadPlan, fresh: dict[int, Model]
    ) -> None:
        old = entry.models
        models = {version: fresh.get(version) or old[version] for version in source.versions}
        for version, model in models.items():
            if version in fresh:
                log.info(f"successfully loaded '{entry.name}' version {version}")
                model.namespace = entry.namespace if self._entries.is_namespacing else ""
                if version in old:
                    model.take_over(old[version])
            entry.status(version).become(State.READY)
            model.set_versions(source.versions)
        for version in plan.drop:
            entry.status(version).become(State.UNLOADING)
        entry.failure, entry.source, entry.origins = "", source, plan.origins
        entry.set_models(models)
        for version, model in old.items():
            if models.get(version) is not model:
                self._drains.start(model, partial(self._on_gone, entry, version))

    def retire(self, entry: Entry, versions: set[int]) -> list[asyncio.Task[None]]:
        """From here on these copies get no new requests."""
        old = entry.models
        entry.set_models(
            {version: model for version, model in old.items() if version not in versions}
        )
        for version in versions:
            if entry.status(version).state is State.READY:
                entry.status(version).become(State.UNLOADING)
        return [
            self._drains.start(old[version], partial(self._on_gone, entry, version))
            for version in versions
        ]

    def _on_gone(self, entry: Entry, version: int) -> None:
        status = entry.status(version)
        if status.state is State.UNLOADING and version not in entry.models:
            status.become(State.UNAVAILABLE, "unloaded")
            log.info(f"successfully unloaded '{entry.name}' version {version}")

    def retire_instance(self, model: Model, instance: Instance) -> None:
        """Of a model that goes on without it."""
        self._drains.retire(model, instance)

    async def finish(self) -> None:
        """Returns when every copy that was retired is gone."""
        await self._drains.finish()


def failures(loaded: Loaded) -> dict[int, NaiadError]:
    return {version: result for version, result in loaded.items() if isinstance(result, NaiadError)}
