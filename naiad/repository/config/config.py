"""A model's directory (or a load request's JSON) -> its completed ModelConfig.

In:  the directory and the server's options. Out: a ModelConfigFile with the configuration, the
     position of each field, and the versions on disk.
Rule: this file reads and completes; validate decides whether the result may be loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import msgspec

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.autocomplete import fill_backend, fill_defaults, fill_instance_groups
from naiad.repository.config.config_override import parse_override
from naiad.repository.config.pbtxt import parse_text
from naiad.repository.config.problem import InvalidConfigError, Problem
from naiad.repository.config.source_map import SourceMap
from naiad.repository.scan import CONFIG_FILE, ModelDirectory, scan_model

# A larger file is not a configuration, and must not be read into memory.
MAX_CONFIG_BYTES = 16 << 20


class ConfigOptions(msgspec.Struct, frozen=True):
    """The settings of the server that affect configurations."""

    is_auto_complete_enabled: bool = True
    """False with --disable-auto-complete-config: a model then needs a config.pbtxt, and backends do
    not complete it."""
    config_name: str = ""
    """--model-config-name: configs/<name>.pbtxt is read instead of config.pbtxt, if it exists."""
    gpus: tuple[int, ...] = ()
    """The ids of the GPUs that may be used."""
    min_compute_capability: float = 6.0
    other_backends: frozenset[str] = frozenset()
    """Backends from packages and from --backend-directory. They may complete a config too."""


class ModelConfigFile(msgspec.Struct, frozen=True):
    config: ModelConfig
    directory: ModelDirectory
    lines: SourceMap
    """Empty if there is no file: the config was given as JSON, or consists of defaults."""
    notes: list[Problem]
    """Warnings: the config is valid, but probably not what was meant."""
    misnamed: Problem | None = None
    """Set if the config has another name than its directory. Triton reports this after whatever is
    wrong with the contents."""

    @property
    def versions(self) -> list[int]:
        return list(self.directory.versions)


def read_model_config(
    model_dir: Path, *, options: ConfigOptions, override: str | bytes | None = None
) -> ModelConfigFile:
    """`override` is the JSON of a load request and replaces the file. Raises InvalidConfigError."""
    directory = scan_model(model_dir)
    notes: list[Problem] = []
    if override is not None:
        config, lines = parse_override(override), SourceMap()
    else:
        path = config_path(model_dir, options)
        text = _read(
            path,
            f"{model_dir.name}/{path.relative_to(model_dir)}",
            is_required=not options.is_auto_complete_enabled,
        )
        parsed = parse_text(text, ModelConfig, f"{model_dir.name}/{path.relative_to(model_dir)}")
        config, lines, notes = parsed.message, parsed.lines, parsed.notes
    directory = _without_named_folders(directory, config)
    is_misnamed = config.name not in ("", model_dir.name)
    misnamed = _wrong_name(config.name, model_dir.name, lines) if is_misnamed else None
    fill_backend(config, model_dir.name, _newest_files(directory))
    fill_defaults(config)
    fill_instance_groups(config, options.gpus)
    return ModelConfigFile(config, directory, lines, notes, misnamed)


def _without_named_folders(directory: ModelDirectory, config: ModelConfig) -> ModelDirectory:
    """A folder that a parameter or requirements.txt names is no version with a wrong name."""
    if not directory.warnings:
        return directory
    texts = [parameter.string_value for parameter in config.parameters.values()]
    with contextlib.suppress(OSError):
        texts.append((directory.path / "requirements.txt").read_text("utf-8", "replace"))
    named = {part for text in texts for part in re.split(r"[\s/=]+", text)}
    warnings = [warning for warning in directory.warnings if warning.found not in named]
    return msgspec.structs.replace(directory, warnings=warnings)


def config_path(model_dir: Path, options: ConfigOptions) -> Path:
    named = model_dir / "configs" / f"{options.config_name}.pbtxt"
    return named if options.config_name and named.is_file() else model_dir / CONFIG_FILE


def _read(path: Path, shown: str, *, is_required: bool) -> str:
    """Bytes that are not UTF-8 become surrogates, which are allowed in comments but refused in
    strings."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_required and not path.is_symlink():
            return ""
        raise InvalidConfigError([_unreadable(shown, error.strerror or "an error")]) from error
    if len(content) > MAX_CONFIG_BYTES:
        raise InvalidConfigError([_unreadable(shown, f"larger than {MAX_CONFIG_BYTES} bytes")])
    return content.decode("utf-8", "surrogateescape")


def _newest_files(directory: ModelDirectory) -> list[str]:
    if not directory.versions:
        return []
    try:
        return os.listdir(directory.versions[max(directory.versions)])
    except OSError:
        return []


def _unreadable(shown: str, reason: str) -> Problem:
    fix = (
        "add a config.pbtxt, or serve without --disable-auto-complete-config"
        if reason == os.strerror(2)
        else ""
    )
    return Problem(
        code="unreadable",
        message=f"failed to open text file for read {shown}: {reason}",
        brief=f"cannot read the file: {reason}",
        file=shown,
        found=reason,
        expected="a readable file",
        fix=fix,
    )


def _wrong_name(name: str, directory_name: str, lines: SourceMap) -> Problem:
    return Problem(
        code="name-mismatch",
        message=f"unexpected directory name '{directory_name}' for model '{name}', "
        "directory name must equal model name",
        path="name",
        file=lines.file_name,
        position=lines.position("name"),
        source=lines.line(lines.position("name")),
        found=f'name: "{name}" in the directory {directory_name}',
        expected=f'name: "{directory_name}", or no name at all',
        fix=f"remove the line, or rename the directory to {name}",
    )
