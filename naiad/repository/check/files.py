"""Checks the files that a configuration names: versions, model files, labels, warm-up data and
initial states. Part of check.

In:  a completed configuration and its directory. Out: problems. Python sources are parsed; nothing
     is executed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from naiad.core.datatype import BY_CONFIG_NUMBER
from naiad.repository.check.framework_files import check_model_file
from naiad.repository.check.model_reader import may_open
from naiad.repository.check.packages import IsInstalled, is_installed
from naiad.repository.check.source import check_python_source
from naiad.repository.config.autocomplete import MODEL_FILES
from naiad.repository.config.config import ModelConfigFile
from naiad.repository.config.problem import Problem, ProblemList
from naiad.repository.config.source_map import entry_path
from naiad.repository.environment.python_environment import REQUIREMENTS, named_environment
from naiad.repository.scan import select_versions


def check_versions(file: ModelConfigFile) -> Iterator[Problem]:
    if select_versions(file.versions, file.config.version_policy):
        return
    name = file.config.name
    message = f"at least one version must be available under the version policy of model '{name}'"
    if file.versions:
        found = ProblemList(file.lines)
        shown = f"version directories {', '.join(map(str, file.versions))}"
        wanted = ", ".join(map(str, file.config.version_policy.specific.versions))
        expected = (
            f"a directory for one of the versions {wanted}"
            if wanted
            else "a policy that serves at least one version"
        )
        fix = "remove version_policy to serve the latest version"
        found.add("no-version", message, "version_policy", found=shown, expected=expected, fix=fix)
        yield from found.problems
        return
    expected = f"a directory such as {name}/1"
    yield Problem(
        code="no-version",
        message=message,
        file=name,
        found="no version directory",
        expected=expected,
        fix=_version_fix(file),
    )


def _version_fix(file: ModelConfigFile) -> str:
    name, model_file = file.config.name, file.config.default_model_filename
    if file.config.HasField("ensemble_scheduling"):
        return f"create {name}/1; it stays empty, so put a .gitkeep into it if you use git"
    if model_file and (file.directory.path / model_file).exists():
        return f"move {name}/{model_file} to {name}/1/{model_file}"
    return f"create {name}/1 and put the model's files there"


def check_model_files(
    file: ModelConfigFile, is_installed: IsInstalled = is_installed, *, opens_files: bool = False
) -> Iterator[Problem]:
    """Checks only backends whose model is a file with a known name. `opens_files`: what can be
    opened is opened afterwards, and tells more."""
    config = file.config
    if config.backend not in MODEL_FILES or config.runtime or config.cc_model_filenames:
        return
    for version in select_versions(file.versions, config.version_policy):
        directory = file.directory.versions[version]
        path = directory / config.default_model_filename
        shown = f"{config.name}/{version}/{config.default_model_filename}"
        if not path.exists():
            files = ", ".join(_names(directory)) or "nothing"
            yield Problem(
                code="model-file",
                message=f"model file {shown} does not exist",
                file=shown,
                found=f"in {config.name}/{version}: {files}",
                expected=config.default_model_filename,
                fix="put the file there, or name it in default_model_filename",
            )
        elif config.backend != "python":
            is_opened = opens_files and may_open(config, path, is_installed)
            yield from check_model_file(file, path, shown, is_installed, is_opened=is_opened)
        elif named_environment(config, file.directory.path) is None:
            has_own_packages = (file.directory.path / REQUIREMENTS).is_file()
            yield from check_python_source(
                path,
                shown,
                has_tensors=bool(config.input or config.output),
                folders=[] if has_own_packages else [directory, file.directory.path],
                is_installed=is_installed,
            )


def completes_itself(file: ModelConfigFile) -> bool:
    """Whether the source of a Python model mentions `auto_complete_config`, in any version."""
    for directory in file.directory.versions.values():
        try:
            source = (directory / file.config.default_model_filename).read_bytes()
        except OSError:
            continue
        if b"auto_complete_config" in source:
            return True
    return False


def check_data_files(file: ModelConfigFile) -> list[Problem]:
    found = ProblemList(file.lines)
    root = file.directory.path
    for index, output in enumerate(file.config.output):
        if output.label_filename:
            _check_file(
                root, output.label_filename, f"output[{index}].label_filename", "label file", found
            )
    for index, sample in enumerate(file.config.model_warmup):
        for name, warm_input in sorted(sample.inputs.items()):
            if warm_input.input_data_file:
                path = f"{entry_path(f'model_warmup[{index}].inputs', name)}.input_data_file"
                wanted = _byte_size(warm_input.data_type, list(warm_input.dims))
                _check_file(
                    root / "warmup", warm_input.input_data_file, path, "warmup data", found, wanted
                )
    for index, state in enumerate(file.config.sequence_batching.state):
        for at, initial in enumerate(state.initial_state):
            if initial.data_file:
                path = f"sequence_batching.state[{index}].initial_state[{at}].data_file"
                wanted = _byte_size(initial.data_type, list(initial.dims))
                _check_file(
                    root / "initial_state",
                    initial.data_file,
                    path,
                    "initial_state data",
                    found,
                    wanted,
                )
    return found.problems


def _check_file(
    directory: Path, name: str, path: str, kind: str, found: ProblemList, wanted_bytes: int = 0
) -> None:
    target = directory / name
    shown = f"{directory.name}/{name}"
    try:
        size = target.stat().st_size
    except OSError as error:
        message = f"failed to open text file for read {shown}: {error.strerror}"
        names = ", ".join(_names(target.parent)) or "nothing"
        found.add(
            "data-file",
            message,
            path,
            found=f"in {target.parent.name}: {names}",
            expected=f"the {kind} {name}",
        )
        return
    if size < wanted_bytes:
        setting = kind.split(" ")[0]
        message = (
            f"{setting} setting expects {wanted_bytes} bytes, but the data provided from {name} "
            f"only has {size} bytes"
        )
        message += "." if setting == "initial_state" else ""
        found.add(
            "data-size",
            message,
            path,
            found=f"{size} bytes",
            expected=f"{wanted_bytes} bytes for one batch element",
        )


def _byte_size(data_type: int, dims: list[int]) -> int:
    """0 if the size is not known: strings, variable dimensions, or an unknown type."""
    kind = BY_CONFIG_NUMBER.get(data_type)
    if kind is None or any(dim < 0 for dim in dims):
        return 0
    return math.prod(dims) * kind.byte_size


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())[:8]
    except OSError:
        return []
