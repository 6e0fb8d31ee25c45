"""Where a model comes from: its directory in one of the repositories, or the config and files of a load request.

In:  a model name. Out: a ModelSource with a validated config, ready to be loaded. The disk is read anew each time.
"""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath

import msgspec

from naiad import log
from naiad.errors import NaiadError, internal, invalid_arg
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.autocomplete import apply_auto_complete, fill_defaults, fill_instance_groups
from naiad.repository.config import ConfigOptions, ModelConfigFile, read_model_config
from naiad.repository.scan import scan_repository, select_versions
from naiad.repository.validate import require_valid

CONFIGURING_BACKENDS = frozenset({"python", "onnxruntime", "openvino", "pytorch"})
"""Backends that can complete a config from the model."""


class ModelSource(msgspec.Struct, eq=False):
    name: str
    directory: Path
    config: ModelConfig
    versions: list[int]
    file: ModelConfigFile
    should_configure: bool
    """The model itself may complete the config (a Python model's auto_complete_config)."""
    temporary: tempfile.TemporaryDirectory[str] | None = None
    """Holds the files of a load request; lives as long as the source."""


class ModelSources:
    def __init__(self, repositories: list[Path], options: ConfigOptions) -> None:
        self._repositories = repositories
        self._options = options

    def names(self) -> set[str]:
        """Models that have a directory now. A repository that cannot be read has none; the log says so."""
        return set(self._directories())

    def has(self, name: str) -> bool:
        return any((repository / name).is_dir() for repository in self._repositories)

    def ensemble_parts(self, name: str, parameters: dict[str, str | bytes] | None = None) -> set[str]:
        """Models that this one calls when it is an ensemble; nothing otherwise, and nothing when its config cannot be read."""
        try:
            file = read_model_config(self._directory(name), options=self._options, override=(parameters or {}).get("config"))
        except NaiadError:
            return set()
        return {step.model_name for step in file.config.ensemble_scheduling.step}

    def _directories(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for repository in self._repositories:
            try:
                for directory in scan_repository(repository):
                    found.setdefault(directory.name, []).append(directory.path)
            except NaiadError as error:
                log.error(f"failed to read model repository '{repository}': {error.message}")
        return found

    def read(self, name: str, parameters: dict[str, str | bytes]) -> ModelSource:
        """`parameters` of a load request: `config`, `file:<path>`. Raises NaiadError."""
        config = parameters.get("config")
        files = {key.removeprefix("file:"): value for key, value in parameters.items() if key.startswith("file:")}
        if files and config is None:
            raise invalid_arg("Load parameter 'config' must be specified for model file override")
        temporary = _write_files(name, files) if files else None
        directory = Path(temporary.name) / name if temporary is not None else self._directory(name)
        file = read_model_config(directory, options=self._options, override=config)
        for warning in file.directory.warnings + file.notes:
            log.warning(warning.sentence())
        should_configure = self._options.is_auto_complete_enabled and file.config.backend in CONFIGURING_BACKENDS
        if not should_configure:
            self._validate(file)
        versions = select_versions(file.versions, file.config.version_policy)
        if not versions:
            raise invalid_arg(f"at least one version must be available under the version policy of model '{name}'")
        return ModelSource(name, directory, file.config, versions, file, should_configure, temporary)

    def complete(self, source: ModelSource, config_json: bytes) -> ModelSource:
        """With what the model said about itself. Raises NaiadError."""
        config = ModelConfig()
        config.CopyFrom(source.config)
        apply_auto_complete(config, msgspec.json.decode(config_json))
        fill_defaults(config)
        fill_instance_groups(config, self._options.gpus)
        completed = msgspec.structs.replace(source.file, config=config)
        self._validate(completed)
        return msgspec.structs.replace(source, config=config, file=completed)

    def _validate(self, file: ModelConfigFile) -> None:
        require_valid(file, self._options)

    def _directory(self, name: str) -> Path:
        places = [repository / name for repository in self._repositories if (repository / name).is_dir()]
        if not places:
            raise internal(f"failed to load '{name}', no version is available")
        if len(places) > 1:
            raise invalid_arg("model appears in two or more repositories")
        return places[0]


def _write_files(name: str, files: dict[str, str | bytes]) -> tempfile.TemporaryDirectory[str]:
    """Confined to the model's folder: a path that would leave it is refused before anything is written."""
    for path in files:
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or "\\" in path or "\0" in path or ".." in parts:
            raise invalid_arg(f"Invalid file parameter 'file:{path}': the path must stay within model directory.")
    temporary = tempfile.TemporaryDirectory(prefix="naiad-model-")
    for path, content in files.items():
        target = Path(temporary.name) / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return temporary
