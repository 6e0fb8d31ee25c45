"""Where a model comes from: its directory in one of the repositories, or the config and files of a
load request.

In:  the name of a model. Out: a ModelSource with its config, ready to be loaded. Every call reads
     the disk again.
Rule: every function may block (on disks or remote stores), so it is called in a thread.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.ipc.generation_call import LANGUAGE_BACKENDS
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import (
    apply_auto_complete,
    fill_defaults,
    fill_instance_groups,
)
from naiad.repository.config.config import ConfigOptions, ModelConfigFile, read_model_config
from naiad.repository.config.file_override import OverrideFolder, write_override_files
from naiad.repository.config.override_check import (
    FULL_RIGHTS,
    OverrideRights,
    drop_facts,
    require_open,
    require_references,
)
from naiad.repository.config.problem import InvalidConfigError
from naiad.repository.config.validate import require_files_inside, require_valid
from naiad.repository.namespace import model_key
from naiad.repository.scan import select_versions
from naiad.repository.store import Store
from naiad.repository.watch.fingerprint import Fingerprint, fingerprint, merged
from naiad.repository.watch.recent_change import RecentChanges

CONFIGURING_BACKENDS = frozenset(
    {"python", "onnxruntime", "openvino", "pytorch", "llm", "vllm", "tensorrtllm"}
)
"""Backends that can complete a config from the model."""
DUPLICATE = "model appears in two or more repositories"


class Override(msgspec.Struct, frozen=True):
    """The config and files that a load request contains."""

    config: str | bytes | None = None
    folder: OverrideFolder | None = None
    rights: OverrideRights = FULL_RIGHTS


def poll_failure(name: str, error: NaiadError) -> NaiadError:
    """The client gets Triton's general message; the log gets the reason."""
    details = ""
    if isinstance(error, InvalidConfigError) and error.problems[0].protobuf:
        first = error.problems[0]
        place = f"{first.position.line}:{first.position.column}" if first.position else "1:1"
        details = f"Error parsing text-format inference.ModelConfig: {place}: {first.protobuf}"
    log.error(f"Poll failed for model directory '{name}': {error.message}", details)
    failure = internal(f"failed to load '{name}', failed to poll from model repository")
    failure.__cause__ = error
    return failure


class NoVersionError(NaiadError):
    """The config is valid, but it selects no version that exists."""


class ModelSource(msgspec.Struct, eq=False):
    key: str
    name: str
    store: Store | None
    """None if the files came with the request."""
    directory: Path
    config: ModelConfig
    versions: list[int]
    file: ModelConfigFile
    fingerprint: Fingerprint
    should_configure: bool
    """The model itself may complete the config (a Python model's auto_complete_config)."""
    folder: OverrideFolder | None = None
    own_file: ModelConfigFile | None = None
    """The config in the repository, where the one of a load request must equal it once the model
    has completed both."""

    @property
    def namespace(self) -> str:
        return self.store.location if self.store is not None else ""

    @property
    def is_ensemble(self) -> bool:
        return self.config.HasField("ensemble_scheduling")

    @property
    def parts(self) -> list[str]:
        """The names of the models that an ensemble's steps call."""
        return sorted({step.model_name for step in self.config.ensemble_scheduling.step})


class ModelSources:
    def __init__(
        self, stores: list[Store], options: ConfigOptions, *, is_namespacing: bool = False
    ) -> None:
        self.stores = stores
        self.is_namespacing = is_namespacing
        self._options = options
        self._recent_changes = RecentChanges()

    # Which models there are.

    def names(self) -> dict[str, list[Store]]:
        """Every model -> the repositories that have it. A repository that cannot be read is left
        out, and the log says so."""
        places: dict[str, list[Store]] = {}
        for store in self.stores:
            try:
                names = store.names()
            except NaiadError as error:
                log.error(f"failed to read model repository '{store.location}': {error.message}")
                continue
            for name in names:
                places.setdefault(name, []).append(store)
        return places

    def places(self, name: str) -> list[Store]:
        return [store for store in self.stores if store.has(name)]

    def refresh(self, names: Collection[str] | None = None) -> list[str]:
        """Updates the local copies of remote repositories. Returns what is wrong with those that
        can neither be reached nor have a copy; the log says so, too."""
        problems: list[str] = []
        for store in self.stores:
            try:
                store.refresh(names)
            except NaiadError as error:
                log.error(error.message)
                problems.append(error.message)
        return problems

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def fingerprints(self) -> dict[str, Fingerprint]:
        """The key of every model -> the fingerprint of its files. Raises NaiadError if a repository
        cannot be read."""
        result: dict[str, Fingerprint] = {}
        for store in self.stores:
            for name in store.names():
                directory = store.directory(name)
                if directory is None:
                    continue
                key, files = self.key(name, store), fingerprint(directory, self._recent_changes)
                result[key] = merged(result[key], files) if key in result else files
        return result

    def key(self, name: str, store: Store | None) -> str:
        return (
            model_key(store.location, name) if self.is_namespacing and store is not None else name
        )

    # One of them.

    def override(
        self,
        name: str,
        parameters: dict[str, str | bytes],
        rights: OverrideRights = FULL_RIGHTS,
    ) -> Override:
        """`parameters` are those of a load request: `config` and `file:<path>`. Raises
        NaiadError."""
        files = {
            key.removeprefix("file:"): value
            for key, value in parameters.items()
            if key.startswith("file:")
        }
        try:
            if files and "config" not in parameters:
                raise invalid_arg(
                    "Load parameter 'config' must be specified for model file override"
                )
            folder = write_override_files(name, files) if files else None
        except NaiadError as error:
            raise poll_failure(name, error) from error
        return Override(parameters.get("config"), folder, rights)

    def read(self, name: str, store: Store | None, override: Override) -> ModelSource:
        """Raises NaiadError."""
        directory = (
            override.folder.directory
            if override.folder is not None
            else store.directory(name)
            if store is not None
            else None
        )
        if directory is None:
            reason = store.failure(name) if store is not None else ""
            message = f"failed to load '{name}', no version is available"
            raise internal(f"{message}: {reason}" if reason else message)
        # Taken before the files are read, so that a change in between shows as a change later.
        files = fingerprint(directory, self._recent_changes)
        file = read_model_config(directory, options=self._options, override=override.config)
        own_file = self._check_override(file.config, name, store, override)
        require_files_inside(file)
        for warning in file.directory.warnings + file.notes:
            log.warning(warning.sentence())
        should_configure = self._completes(file.config)
        versions = select_versions(file.versions, file.config.version_policy)
        # A config that the model completes is judged when it is complete, unless the load fails
        # here anyway: Triton reports what is wrong with the contents first.
        if not should_configure or file.misnamed is not None or not versions:
            require_valid(file, self._options, is_complete=not should_configure)
        if not versions:
            error = invalid_arg(
                f"at least one version must be available under the version policy of model '{name}'"
            )
            raise NoVersionError(error.code, error.message)
        return ModelSource(
            self.key(name, store),
            name,
            store,
            directory,
            file.config,
            versions,
            file,
            files,
            should_configure,
            override.folder,
            own_file,
        )

    def _check_override(
        self, config: ModelConfig, name: str, store: Store | None, override: Override
    ) -> ModelConfigFile | None:
        """Returns the config in the repository if the two must be compared again when the model
        has completed them. Raises NaiadError if the sender may not load this config."""
        if override.config is None:
            return None
        if config.backend in LANGUAGE_BACKENDS:
            drop_facts(config)
        directory = store.directory(name) if store is not None else None

        def read_own() -> ModelConfigFile:
            if directory is None:
                raise internal(f"failed to load '{name}', no version is available")
            return read_model_config(directory, options=self._options)

        require_references(config, lambda: read_own().config, override.rights)
        if override.rights.may_change_all:
            return None
        own = read_own()
        must_complete = require_open(config, own.config, completes=self._completes(config))
        return own if must_complete else None

    def _completes(self, config: ModelConfig) -> bool:
        """The model itself may complete the config."""
        completing = CONFIGURING_BACKENDS | self._options.other_backends
        return (
            self._options.is_auto_complete_enabled
            and config.backend in completing
            and not config.HasField("ensemble_scheduling")
        )

    def read_parts(self, name: str, store: Store) -> set[str]:
        """The names of the models that an ensemble calls; empty for other models. Raises
        NaiadError."""
        directory = store.directory(name)
        if directory is None:
            return set()
        file = read_model_config(directory, options=self._options)
        return {step.model_name for step in file.config.ensemble_scheduling.step}

    def complete(self, file: ModelConfigFile, config_json: bytes) -> ModelConfig:
        """The config, completed by what the model has returned. Raises NaiadError."""
        config = ModelConfig()
        config.CopyFrom(file.config)
        apply_auto_complete(config, msgspec.json.decode(config_json))
        fill_defaults(config)
        fill_instance_groups(config, self._options.gpus)
        require_valid(msgspec.structs.replace(file, config=config), self._options)
        return config
