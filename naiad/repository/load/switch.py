"""The moment of a reload: new copies replace old ones within one turn of the event loop. The old
copies then drain.

In:  new copies. Out: an entry whose models and states tell which copies serve now.
Rule: all versions or none. If one version failed to start, the old copies keep serving and the new
      ones are stopped.
"""

from __future__ import annotations

import asyncio
from functools import partial

from naiad import log
from naiad.errors import NaiadError, invalid_arg
from naiad.instances.instance import Instance
from naiad.repository.entry import Entry
from naiad.repository.load.copies import Copies, failures
from naiad.repository.load.draining import Drains
from naiad.repository.load.lifecycle import State
from naiad.repository.load.reload_plan import ReloadPlan
from naiad.repository.model import Model
from naiad.repository.namespace import Entries


class Switch:
    def __init__(self, entries: Entries, drains: Drains) -> None:
        self._entries = entries
        self._drains = drains

    def swap_in(self, entry: Entry, plan: ReloadPlan, copies: Copies) -> None:
        """From here on the new copies serve, and the old ones finish the requests that they have.
        Raises NaiadError if a version failed to start."""
        started = {version: copy for version, copy in copies.items() if isinstance(copy, Model)}
        failed = failures(copies)
        if failed:
            self._reject(entry, started, failed)
            versions = "".join(
                f"version {version} is at UNAVAILABLE state: {error.code}: {error.message};\n"
                for version, error in failed.items()
            )
            raise invalid_arg(f"load failed for model '{entry.name}': {versions}")
        self._replace(entry, plan, started)

    def _reject(
        self, entry: Entry, started: dict[int, Model], failed: dict[int, NaiadError]
    ) -> None:
        for version, error in failed.items():
            first, _, rest = error.message.partition("\n")
            log.error(
                f"failed to load '{entry.name}' version {version}: {error.code}: {first}",
                error.details or rest,
            )
            entry.abandon_loading([version], f"{error.code}: {error.message}")
        entry.abandon_loading(started)
        for model in started.values():
            self._drains.start(model)

    def _replace(self, entry: Entry, plan: ReloadPlan, started: dict[int, Model]) -> None:
        old, versions = entry.models, plan.source.versions
        models = {version: started.get(version) or old[version] for version in versions}
        for version, model in models.items():
            if version in started:
                log.info(f"successfully loaded '{entry.name}' version {version}")
                model.namespace = entry.namespace if self._entries.is_namespacing else ""
                if version in old:
                    model.take_over(old[version])
            entry.status(version).become(State.READY)
            model.set_versions(versions)
        for version in plan.drop:
            entry.status(version).become(State.UNLOADING)
        entry.failure, entry.source, entry.origins = "", plan.source, plan.origins
        entry.set_models(models)
        for version, model in old.items():
            if models.get(version) is not model:
                self._drains.start(model, partial(self._on_stopped, entry, version))

    def retire(self, entry: Entry, versions: set[int]) -> list[asyncio.Task[None]]:
        """From here on these copies get no new requests. Each task ends when a copy has
        stopped."""
        old = entry.models
        entry.set_models(
            {version: model for version, model in old.items() if version not in versions}
        )
        for version in versions:
            if entry.status(version).state is State.READY:
                entry.status(version).become(State.UNLOADING)
        return [
            self._drains.start(old[version], partial(self._on_stopped, entry, version))
            for version in versions
        ]

    def _on_stopped(self, entry: Entry, version: int) -> None:
        status = entry.status(version)
        if status.state is State.UNLOADING and version not in entry.models:
            status.become(State.UNAVAILABLE, "unloaded")
            log.info(f"successfully unloaded '{entry.name}' version {version}")

    def retire_instance(self, model: Model, instance: Instance) -> asyncio.Task[None]:
        """Stops one instance of a model that keeps serving without it. The task ends when the
        instance has been finalized."""
        return self._drains.retire(model, instance)

    async def finish(self) -> None:
        """Returns when every retired copy has stopped."""
        await self._drains.finish()
