"""One load of a model's versions: each is completed by the model itself, started, and tried again
as often as the server allows.

In:  a ModelSource and the versions of it that are wanted. Out: a Model or an error for each;
     nothing else is left running.
"""

from __future__ import annotations

import asyncio

from naiad import log
from naiad.errors import NaiadError
from naiad.repository.agents import run_agents
from naiad.repository.load.loader import ConfiguredProcess, Loader
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources

Loaded = dict[int, Model | NaiadError]


class VersionLoads:
    def __init__(self, sources: ModelSources, loader: Loader, *, retry_count: int = 0) -> None:
        self._sources = sources
        self._loader = loader
        self._retry_count = retry_count

    async def load(self, source: ModelSource, versions: list[int]) -> Loaded:
        """Side by side. When it is cancelled, what was loaded meanwhile is stopped."""
        tasks = [asyncio.ensure_future(self._load(source, version)) for version in versions]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(
                *(result.kill() for result in results if isinstance(result, Model))
            )
            raise
        return {version: task.result() for version, task in zip(versions, tasks, strict=True)}

    async def _load(self, source: ModelSource, version: int) -> Model | NaiadError:
        for attempt in range(self._retry_count + 1):
            try:
                return await self._load_once(source, version)
            except NaiadError as failure:
                error = failure
                if attempt < self._retry_count:
                    log.warning(
                        f"failed to load '{source.name}' version {version}, trying again: {error.code}: {error.message}"
                    )
        return error

    async def _load_once(self, source: ModelSource, version: int) -> Model:
        config = source.config
        configured: ConfiguredProcess | None = None
        await run_agents(config, source.directory)
        try:
            if source.should_configure:
                configured = await self._loader.configure(config, version, source.directory)
                config = self._sources.complete(source, configured.config_json)
            model = await self._loader.load(
                config, version, source.versions, source.directory, configured
            )
        except BaseException:
            if configured is not None:
                await self._loader.discard(configured)
            raise
        if source.folder is not None:
            source.folder.hold()
            model.on_stopped.append(source.folder.release)
        return model
