"""Starts new copies of a model: each version completes its config, starts its instances, and is
tried again as often as the server allows.

In:  a ModelSource and some of its versions. Out: a Model or an error for each version. A version
     that failed leaves nothing running.
"""

from __future__ import annotations

import asyncio

from naiad import log
from naiad.errors import NaiadError
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.agents import run_agents
from naiad.repository.config.override_check import require_open
from naiad.repository.load.failure import brief_reason
from naiad.repository.load.loader import ConfiguredProcess, Loader
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources

Copies = dict[int, Model | NaiadError]
"""A version -> its new copy, or the error that kept it from starting."""


class CopyStarter:
    def __init__(self, sources: ModelSources, loader: Loader, *, retry_count: int = 0) -> None:
        self._sources = sources
        self._loader = loader
        self._retry_count = retry_count

    async def start(self, source: ModelSource, versions: list[int]) -> Copies:
        """Starts all versions at the same time. If this is cancelled, copies that have started are
        killed."""
        if not versions:
            return {}
        tasks = [asyncio.ensure_future(self._try_start(source, version)) for version in versions]
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

    async def _try_start(self, source: ModelSource, version: int) -> Model | NaiadError:
        for attempt in range(self._retry_count + 1):
            try:
                return await self._start_version(source, version)
            except NaiadError as failure:
                error = failure
                if attempt < self._retry_count:
                    log.warning(
                        f"failed to load '{source.name}' version {version}, trying again: "
                        f"{error.code}: {brief_reason(error.message)}"
                    )
        return error

    async def _start_version(self, source: ModelSource, version: int) -> Model:
        config = source.config
        configured: ConfiguredProcess | None = None
        await run_agents(config, source.directory)
        try:
            if source.should_configure:
                own = await self._complete_own(source, version)
                configured = await self._loader.configure(config, version, source.directory)
                config = self._sources.complete(source.file, configured.config_json)
                if own is not None:
                    require_open(config, own)
            model = await self._loader.start_copy(
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

    async def _complete_own(self, source: ModelSource, version: int) -> ModelConfig | None:
        """The config in the repository as the model completes it, where the config of a load
        request must equal it."""
        if source.own_file is None:
            return None
        own = source.own_file
        configured = await self._loader.configure(own.config, version, source.directory)
        await self._loader.discard(configured)
        return self._sources.complete(own, configured.config_json)


def failures(copies: Copies) -> dict[int, NaiadError]:
    return {version: result for version, result in copies.items() if isinstance(result, NaiadError)}
