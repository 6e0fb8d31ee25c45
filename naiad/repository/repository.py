"""The model repository as the rest of the server sees it: which models exist and serve, and the
requests that change this.

In:  names and versions, as clients write them. Out: `ready_model` for the inference core, the
     index, readiness, statistics.
Rule: this file looks models up; operations.py changes which models serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from naiad.core.model_name import trim_name
from naiad.core.model_spec import ModelIndex
from naiad.core.statistics import ModelStatistics
from naiad.errors import NaiadError, invalid_arg, not_found, unavailable
from naiad.repository.config.file_override import remove_leftovers
from naiad.repository.config.override_check import FULL_RIGHTS, OverrideRights
from naiad.repository.entry import Entry
from naiad.repository.index import build_index, status_rows
from naiad.repository.load.lifecycle import State
from naiad.repository.load.loader import Loader
from naiad.repository.load.operations import Operations
from naiad.repository.load.reload import ReloadOptions
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSources
from naiad.repository.namespace import Entries
from naiad.repository.store import LocalStore
from naiad.repository.watch.poll import Poll
from naiad.repository.watch.watch import Fingerprints
from naiad.shm.arena import INLINE_MAX_BYTES

RETRY_AFTER_S = 1
LATEST = ""
MAX_VERSION = 2**63 - 1


class RepositoryOptions(msgspec.Struct, frozen=True):
    is_explicit: bool = False
    """`--model-control-mode=explicit`: only models that a request names are loaded."""
    startup_models: list[str] = []
    """`--load-model`; `*` means all models."""
    poll_interval_s: float = 0.0
    """`--repository-poll-secs` in poll mode; 0 means no polling."""
    reloads: ReloadOptions = ReloadOptions()


class Start(msgspec.Struct, frozen=True):
    """How the first loads of the server went."""

    problems: list[str]
    """What is wrong with repositories that could not be read."""
    num_models: int
    failures: dict[str, str]
    """Model -> why it does not serve."""

    @property
    def is_success(self) -> bool:
        return not self.problems and not self.failures


class Repository:
    def __init__(self, sources: ModelSources, loader: Loader, options: RepositoryOptions) -> None:
        self._sources = sources
        self._options = options
        self.directory = loader.directory
        """The shared memory of all models."""
        self._entries = Entries(is_namespacing=sources.is_namespacing)
        self._operations = Operations(self._entries, sources, loader, options.reloads)
        self._poll = Poll(sources, self._operations, options.poll_interval_s)

    # For every request.

    def ready_model(self, name: str, version: str = LATEST) -> Model:
        """The copy that serves this version. Raises Triton's `Request for unknown model` errors,
        or says that the workers of the model are down."""
        entry = self._entries.by_key.get(name) or self._entries.find(name)
        if entry is not None:
            model = entry.latest if version == LATEST else entry.models.get(parse_version(version))
            if model is not None:
                if model.is_serving:
                    return model
                if outage := model.outage:
                    raise unavailable(
                        f"model '{name}' version {model.version} is not able to serve: {outage}",
                        RETRY_AFTER_S,
                    )
        raise self._unknown(entry, name, version)

    def find_serving(self, name: str, version: str = LATEST) -> Model | None:
        """Like `ready_model`, but returns None instead of saying what is wrong."""
        entry = self._entries.by_key.get(name)
        if entry is None:
            return None
        model = entry.latest if version == LATEST else entry.models.get(parse_version(version))
        return model if model is not None and model.is_serving else None

    def _unknown(self, entry: Entry | None, name: str, version: str) -> NaiadError:
        prefix = f"Request for unknown model: '{name}'"
        if version != LATEST:
            number = parse_version(version)
            if entry is None or number not in entry.statuses:
                return not_found(f"{prefix} version {number} is not found")
            return unavailable(f"{prefix} version {number} is not at ready state", RETRY_AFTER_S)
        if entry is None or not entry.statuses:
            return not_found(f"{prefix} is not found")
        if entry.latest is not None or entry.is_between_copies:
            number = entry.latest.version if entry.latest is not None else max(entry.statuses)
            return unavailable(f"{prefix} version {number} is not at ready state", RETRY_AFTER_S)
        return not_found(f"{prefix} has no available versions")

    def input_buffer(self, name: str, num_bytes: int) -> memoryview | None:
        entry = self._entries.by_key.get(name)
        if num_bytes <= INLINE_MAX_BYTES or entry is None or entry.latest is None:
            return None
        try:
            return entry.latest.arena.allocate(num_bytes)
        except OSError:
            # There are no file descriptors or no memory left. The request is received into ordinary
            # memory; there may be room again when it is sent to a worker.
            return None

    # State.

    def watch(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called whenever the models that serve have changed, perhaps several times
        for one change."""
        self._entries.on_change = on_change

    def models(self) -> Iterable[Model]:
        for entry in self._entries.by_key.values():
            yield from entry.models.values()

    def is_ready(self) -> bool:
        """Whether every model that should serve does, with workers that respond."""
        return all(entry.is_ready for entry in self._entries.by_key.values() if entry.is_wanted)

    def is_model_ready(self, name: str, version: str = LATEST) -> bool:
        number = LATEST if version == LATEST else parse_version(version)
        try:
            entry = self._entries.find(name)
        except NaiadError:  # Several models have this name, so it means none of them.
            return False
        if entry is None:
            return False
        model = entry.latest if isinstance(number, str) else entry.models.get(number)
        if model is not None and not model.is_healthy:
            model.log_unhealthy()
        return (
            model is not None
            and model.is_healthy
            and all(self.is_model_ready(part) for part in entry.part_keys)
        )

    def statistics(self, name: str = "", version: str = LATEST) -> list[ModelStatistics]:
        if not name:
            return [
                model.statistics
                for model in sorted(self.models(), key=lambda model: (model.name, model.version))
            ]
        entry = self._entries.find(name)
        if entry is None or not entry.models:
            raise invalid_arg(f"requested model '{name}' is not available")
        if version == LATEST:
            return [entry.models[number].statistics for number in sorted(entry.models)]
        number = parse_version(version)
        if number not in entry.models:
            raise invalid_arg(f"requested model version is not available for model '{name}'")
        return [entry.models[number].statistics]

    def index(self, *, ready_only: bool) -> list[ModelIndex]:
        return build_index(self._entries, self._sources, ready_only=ready_only)

    def known_names(self) -> set[str]:
        """The names of all models in the repositories. Reads directories, so it may be slow."""
        return set(self._sources.names())

    def location(self, name: str) -> str:
        """The repository that has the model; empty if it came with a load request."""
        return next((store.location for store in self._sources.places(name)), "")

    def entries(self) -> Iterable[Entry]:
        """What the server knows about the models that it has loaded or tried to load."""
        return iter(self._entries)

    @property
    def is_explicit(self) -> bool:
        """Models are loaded and unloaded by requests."""
        return self._options.is_explicit

    def status_rows(self) -> list[tuple[str, str, str]]:
        """(model, version, status) for the table that the server prints when it has started."""
        return status_rows(self._entries)

    # Changes.

    async def start(self) -> Start:
        """Loads the models that the control mode selects. A model that fails does not keep the
        others from serving."""
        remove_leftovers()
        is_listed = self._options.is_explicit and self._options.startup_models != ["*"]
        listed = set(self._options.startup_models) if is_listed else None
        problems = await asyncio.to_thread(self._sources.refresh, listed)
        present = await asyncio.to_thread(self._sources.names)
        fingerprints: Fingerprints = {}
        if self._options.poll_interval_s:
            fingerprints = await asyncio.to_thread(self._sources.fingerprints)
        failures = await self._operations.reload_all(set(present) if listed is None else listed)
        if self._options.poll_interval_s:
            self._poll.start(fingerprints, set(failures))
        reasons = {name: self._reason(name, error) for name, error in failures.items()}
        num_models = len(reasons.keys() | {entry.name for entry in self._entries})
        return Start(problems, num_models, reasons)

    def _reason(self, name: str, error: NaiadError) -> str:
        """The error that the client would get hides why a config cannot be read."""
        entries = self._entries.named(name)
        text = next((entry.failure_text() for entry in entries if not entry.models), "")
        return text or str(error.__cause__ or error.message)

    async def load(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        caller: str = "",
        rights: OverrideRights = FULL_RIGHTS,
    ) -> None:
        """Returns when the model serves. `caller` is the instance whose model made the request, if
        one did."""
        self._require_explicit()
        await self._operations.reload(checked_name(name), parameters, caller, rights)

    async def unload(self, name: str, *, unload_dependents: bool, caller: str = "") -> None:
        """Returns when the model accepts no more requests. To unload a model that is not loaded, or
        does not exist, is no error, whatever its name."""
        self._require_explicit()
        await self._operations.unload(
            trim_name(name), unload_dependents=unload_dependents, caller=caller
        )

    # Changes by the console, which writes the repository: they are possible in every control mode.

    async def apply(self, name: str) -> None:
        """Loads the model as it is in the repository now. Returns when it serves."""
        await self._operations.reload(checked_name(name), {})

    async def withdraw(self, name: str) -> None:
        """Unloads a model until a request, a change of its files or the next start loads it."""
        await self._operations.unload(trim_name(name), unload_dependents=False)

    async def forget(self, name: str) -> None:
        """Unloads a model whose files are gone, and drops what is known about it."""
        for entry in self._entries.named(name):
            await self._operations.remove(entry.key)
            if not entry.models:
                self._entries.remove(entry.key)

    def clear_failure(self, name: str) -> None:
        """The files whose load failed have been replaced by those that serve."""
        for entry in self._entries.named(name):
            entry.failure = ""
            for version, status in list(entry.statuses.items()):
                if status.state is State.UNAVAILABLE and version not in entry.models:
                    del entry.statuses[version]

    def local_folders(self) -> list[Path]:
        """The repositories that are folders of this machine."""
        return [store.path for store in self._sources.stores if isinstance(store, LocalStore)]

    def _require_explicit(self) -> None:
        if not self._options.is_explicit:
            raise unavailable("explicit model load / unload is not allowed if polling is enabled")

    # The end.

    def num_with_inflight(self) -> int:
        return sum(model.scheduler.inflight() > 0 for model in self.models())

    async def drain(self) -> None:
        """Returns when no request is in flight. From now on new requests are refused, except those
        that a request in flight makes."""
        await self._poll.stop()
        await asyncio.gather(*(model.scheduler.stop() for model in self.models()))

    async def stop(self) -> None:
        self._sources.close()
        await self._poll.stop()
        await self._operations.stop()

    def heartbeat(self, now_ns: int) -> None:
        for model in self.models():
            model.heartbeat(now_ns)


def parse_version(version: str) -> int:
    """Triton parses a version as a 64-bit number; its error names the C++ function `stol`."""
    try:
        number = int(version)
    except ValueError:
        number = MAX_VERSION + 1
    if number > MAX_VERSION:
        raise invalid_arg(
            f"failed to get model version from specified version string '{version}' "
            "(details: stol), "
            "version should be an integral value > 0"
        )
    if number < 0:
        raise invalid_arg(
            f"invalid model version specified '{version}' , version should be an integral value > 0"
        )
    return number


def checked_name(name: str) -> str:
    """The name without the white space around it. Raises NaiadError if it is not that of a
    model."""
    trimmed = trim_name(name)
    if not trimmed:
        raise invalid_arg("Model name cannot be empty. Please enter a valid name to deploy.")
    if "/" in trimmed or "\0" in trimmed or trimmed in (".", ".."):
        raise invalid_arg(
            f"invalid model name '{name}', model name must not contain path traversal characters"
        )
    return trimmed
