"""The model repository: which models there are, which serve, and how one becomes the other.

In:  directories, load and unload requests. Out: `ready_model` for the inference core; the index; readiness.
Rules: a load makes the new copy ready before the old one goes, and a failed load changes nothing that serves. Operations on one
model happen one after the other; different models load side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from naiad import log
from naiad.core.model_spec import ModelIndex
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, internal, invalid_arg, not_found, unavailable
from naiad.repository.lifecycle import State, VersionStatus
from naiad.repository.loader import ConfiguredProcess, Loader
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSource, ModelSources
from naiad.shm.arena import INLINE_MAX_BYTES

RETRY_AFTER_S = 1
FINALIZE_TIMEOUT_S = 30.0
LATEST = ""


class RepositoryOptions(msgspec.Struct, frozen=True):
    is_explicit: bool = False
    """`--model-control-mode=explicit`: nothing is loaded but what is asked for."""
    startup_models: list[str] = []
    """`--load-model`; `*` means all."""
    max_concurrent_loads: int = 4
    load_retry_count: int = 0


class Entry:
    """What is known about one model name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.statuses: dict[int, VersionStatus] = {}
        self.models: dict[int, Model] = {}
        self.latest: Model | None = None
        self.is_wanted = False
        """Should serve: readiness depends on it."""
        self.failure = ""
        """Why the last load failed before any version could be tried."""

    def set_models(self, models: dict[int, Model]) -> None:
        self.models = models
        self.latest = models[max(models)] if models else None

    def status(self, version: int) -> VersionStatus:
        return self.statuses.setdefault(version, VersionStatus())


class Repository:
    def __init__(self, sources: ModelSources, loader: Loader, options: RepositoryOptions) -> None:
        self._sources = sources
        self._loader = loader
        self._options = options
        self._entries: dict[str, Entry] = {}
        self._slots = asyncio.Semaphore(max(options.max_concurrent_loads, 1))
        self._background: set[asyncio.Task[None]] = set()

    # For every request.

    def ready_model(self, name: str, version: str = LATEST) -> Model:
        """The version that serves. Raises Triton's `Request for unknown model` errors."""
        entry = self._entries.get(name)
        if entry is not None:
            model = entry.latest if version == LATEST else entry.models.get(parse_version(version))
            if model is not None and model.is_serving:
                return model
        raise self._unknown(entry, name, version)

    def _unknown(self, entry: Entry | None, name: str, version: str) -> NaiadError:
        prefix = f"Request for unknown model: '{name}'"
        if version != LATEST:
            number = parse_version(version)
            if entry is None or number not in entry.statuses:
                return not_found(f"{prefix} version {number} is not found")
            return unavailable(f"{prefix} version {number} is not at ready state", RETRY_AFTER_S)
        if entry is None or not entry.statuses:
            return not_found(f"{prefix} is not found")
        if entry.latest is not None:
            return unavailable(f"{prefix} version {entry.latest.version} is not at ready state", RETRY_AFTER_S)
        return not_found(f"{prefix} has no available versions")

    def input_buffer(self, name: str, num_bytes: int) -> memoryview | None:
        entry = self._entries.get(name)
        if num_bytes <= INLINE_MAX_BYTES or entry is None or entry.latest is None:
            return None
        return entry.latest.arena.allocate(num_bytes)

    # State.

    def models(self) -> Iterable[Model]:
        for entry in self._entries.values():
            yield from entry.models.values()

    def is_ready(self) -> bool:
        """Every model that should serve does, with workers that answer."""
        return all(
            entry.latest is not None
            and all(status.state is State.READY for status in entry.statuses.values())
            and all(model.is_healthy for model in entry.models.values())
            for entry in self._entries.values()
            if entry.is_wanted
        )

    def is_model_ready(self, name: str, version: str = LATEST) -> bool:
        entry = self._entries.get(name)
        if entry is None:
            return False
        model = entry.latest if version == LATEST else entry.models.get(parse_version(version))
        return model is not None and model.is_healthy

    def statistics(self, name: str = "", version: str = LATEST) -> list[ModelStatistics]:
        if not name:
            return [model.statistics for model in sorted(self.models(), key=lambda model: (model.name, model.version))]
        entry = self._entries.get(name)
        if entry is None or not entry.models:
            raise invalid_arg(f"requested model '{name}' is not available")
        if version == LATEST:
            return [entry.models[number].statistics for number in sorted(entry.models)]
        number = parse_version(version)
        if number not in entry.models:
            raise invalid_arg(f"requested model version is not available for model '{name}'")
        return [entry.models[number].statistics]

    def index(self, *, ready_only: bool) -> list[ModelIndex]:
        rows: list[ModelIndex] = []
        for name in sorted(self._entries.keys() | self._sources.names()):
            entry = self._entries.get(name)
            if entry is None or not entry.statuses:
                if not ready_only:
                    rows.append(ModelIndex(name))
                continue
            for version in sorted(entry.statuses):
                status = entry.statuses[version]
                if status.state is State.READY or not ready_only:
                    rows.append(ModelIndex(name, str(version), status.state.value, status.reason))
        return rows

    def status_rows(self) -> list[tuple[str, str, str]]:
        """(model, version, status) for the table that is printed at start."""
        rows: list[tuple[str, str, str]] = []
        for name in sorted(self._entries):
            entry = self._entries[name]
            if not entry.statuses:
                rows.append((name, "-", f"Not loaded: {entry.failure or 'No model version was found'}"))
            for version, status in sorted(entry.statuses.items()):
                rows.append((name, str(version), f"{status.state}: {status.reason}" if status.reason else status.state.value))
        return rows

    # Loading.

    async def start(self) -> bool:
        """Loads what the control mode says; True when all of it serves. One model's failure is not another's."""
        names = self._sources.names()
        if self._options.is_explicit:
            wanted = names if self._options.startup_models == ["*"] else set(self._options.startup_models)
        else:
            wanted = names
        results = await asyncio.gather(*(self._load_logged(name) for name in sorted(wanted)))
        return all(results)

    async def _load_logged(self, name: str) -> bool:
        try:
            await self._load(name)
        except NaiadError as error:
            log.error(f"failed to load '{name}': {error.message}")
            return False
        return True

    async def load(self, name: str, parameters: dict[str, str | bytes]) -> None:
        self._require_explicit()
        check_model_name(name)
        await self._load(name, parameters)

    def _require_explicit(self) -> None:
        if not self._options.is_explicit:
            raise unavailable("explicit model load / unload is not allowed if polling is enabled")

    async def _load(self, name: str, parameters: dict[str, str | bytes] | None = None) -> None:
        entry = self._entries.get(name) or Entry(name)
        async with entry.lock:
            source = self._read(entry, name, parameters or {})
            entry = self._entries.setdefault(name, entry)
            entry.is_wanted = True
            async with self._slots:
                await self._load_source(entry, source)

    def _read(self, entry: Entry, name: str, parameters: dict[str, str | bytes]) -> ModelSource:
        try:
            return self._sources.read(name, parameters)
        except NaiadError as error:
            log.error(f"Poll failed for model directory '{name}': {error.message}")
            if name in self._sources.names():
                entry.failure = error.message
                entry.is_wanted = entry.is_wanted or not self._options.is_explicit
                self._entries.setdefault(name, entry)
            raise internal(f"failed to load '{name}', failed to poll from model repository") from error

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
        self._switch(entry, source, loaded)

    async def _load_versions(self, source: ModelSource, configured: ConfiguredProcess | None) -> dict[int, Model | NaiadError]:
        async def one(version: int) -> Model | NaiadError:
            process = configured if configured is not None and configured.version == version else None
            for attempt in range(self._options.load_retry_count + 1):
                try:
                    return await self._loader.load(source.config, version, source.versions, source.directory, process)
                except NaiadError as error:
                    process = None
                    if attempt == self._options.load_retry_count:
                        return error
            raise AssertionError("unreachable")

        results = await asyncio.gather(*(one(version) for version in source.versions))
        return dict(zip(source.versions, results, strict=True))

    def _switch(self, entry: Entry, source: ModelSource, loaded: dict[int, Model | NaiadError]) -> None:
        """The new copies serve from here on; the old ones finish what they have. All of it in one turn of the loop."""
        failures = {version: result for version, result in loaded.items() if isinstance(result, NaiadError)}
        models = {version: result for version, result in loaded.items() if isinstance(result, Model)}
        for version, error in failures.items():
            log.error(f"failed to load '{entry.name}' version {version}: {error.code}: {error.message}")
            if entry.status(version).state is State.LOADING:
                entry.status(version).become(State.UNAVAILABLE, f"{error.code}: {error.message}")
        if failures and entry.models:
            # A failed reload keeps what serves: the copies that did load are not needed.
            for model in models.values():
                self._in_background(model.stop(FINALIZE_TIMEOUT_S))
        else:
            old = entry.models
            for version in models:
                log.info(f"successfully loaded '{entry.name}' version {version}")
                entry.status(version).become(State.READY)
            for version in old.keys() - models.keys():
                entry.status(version).become(State.UNLOADING)
            entry.set_models(models)
            for version, model in old.items():
                self._in_background(self._drain(entry, version, model))
        if failures:
            words = "".join(f"version {version} is at UNAVAILABLE state: {e.code}: {e.message};\n" for version, e in failures.items())
            raise invalid_arg(f"load failed for model '{entry.name}': {words}")

    # Unloading.

    async def unload(self, name: str, *, unload_dependents: bool) -> None:
        """Returns when the model takes no more requests; it goes when those in flight are done."""
        self._require_explicit()
        check_model_name(name)
        entry = self._entries.get(name)
        if entry is None or not entry.models:
            if name not in self._sources.names() and entry is None:
                raise internal(f"failed to unload '{name}', versions that are still available: ")
            return
        async with entry.lock:
            old = entry.models
            entry.is_wanted = False
            entry.set_models({})
            for version, model in old.items():
                entry.status(version).become(State.UNLOADING)
                self._in_background(self._drain(entry, version, model))

    async def _drain(self, entry: Entry, version: int, model: Model) -> None:
        await model.stop(FINALIZE_TIMEOUT_S)
        status = entry.status(version)
        if status.state is State.UNLOADING and entry.models.get(version) is None:
            status.become(State.UNAVAILABLE, "unloaded")
            log.info(f"successfully unloaded '{entry.name}' version {version}")

    def _in_background(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # The end.

    def inflight(self) -> int:
        return sum(model.scheduler.inflight() for model in self.models())

    def num_with_inflight(self) -> int:
        return sum(model.scheduler.inflight() > 0 for model in self.models())

    async def drain(self) -> None:
        """Returns when no request is in flight; new ones are refused from now on."""
        await asyncio.gather(*(model.scheduler.stop() for model in self.models()))

    async def stop(self) -> None:
        """Finalizes everything."""
        for entry in self._entries.values():
            entry.is_wanted = False
        models = list(self.models())
        await asyncio.gather(*(model.stop(FINALIZE_TIMEOUT_S) for model in models))
        for entry in self._entries.values():
            entry.set_models({})
        if self._background:
            await asyncio.wait(self._background)

    def heartbeat(self, now_ns: int) -> None:
        for model in self.models():
            model.heartbeat(now_ns)


def parse_version(version: str) -> int:
    try:
        number = int(version)
    except ValueError:
        number = 0
    if number <= 0:
        raise invalid_arg(
            f"failed to get model version from specified version string '{version}' (details: stol), "
            "version should be an integral value > 0"
        )
    return number


def check_model_name(name: str) -> None:
    if not name:
        raise invalid_arg("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
        raise invalid_arg(f"invalid model name '{name}', model name must not contain path traversal characters")


