"""A repository's directories -> the models and versions in it.

In:  the path of a model repository. Out: one ModelDirectory per model, with its versions and
     warnings.
Rules: only directories are opened. A directory that cannot be read is reported and does not affect
       the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from naiad.errors import internal
from naiad.pb.model_config_pb2 import ModelVersionPolicy
from naiad.repository.config.problem import Problem

CONFIG_FILE = "config.pbtxt"
# Directories of a model that are not versions, and are not mistakes either.
NOT_VERSIONS = frozenset({"warmup", "initial_state", "configs", "wheels"})
_MAX_VERSION = 2**63 - 1


class ModelDirectory(msgspec.Struct, frozen=True):
    name: str
    path: Path
    versions: dict[int, Path]
    """Version -> its directory, in ascending order."""
    warnings: list[Problem]


def scan_repository(path: Path) -> list[ModelDirectory]:
    """The models, sorted by name. Directories whose name starts with a dot are not models (.git, or
    ..data of a mounted volume)."""
    try:
        entries = _subdirectories(path)
    except OSError as error:
        # The message may contain the path, because the operator gave it.
        raise internal(f"failed to open directory {path}: {error.strerror}") from error
    return [scan_model(Path(entry.path)) for entry in entries if not entry.name.startswith(".")]


def scan_model(path: Path) -> ModelDirectory:
    versions: dict[int, Path] = {}
    try:
        entries = _subdirectories(path)
    except OSError as error:
        return ModelDirectory(path.name, path, versions, [_unreadable(path, error)])
    warnings: list[Problem] = []
    for entry in entries:
        if entry.name in NOT_VERSIONS or entry.name.startswith("."):
            continue
        fault = _version_fault(entry.name)
        if fault:
            warnings.append(_ignored(path.name, entry.name, fault))
        else:
            versions[int(entry.name)] = Path(entry.path)
    return ModelDirectory(path.name, path, dict(sorted(versions.items())), warnings)


def select_versions(available: Iterable[int], policy: ModelVersionPolicy) -> list[int]:
    """The versions that the policy serves, in ascending order. An empty policy serves the latest
    version, as in Triton."""
    versions = sorted(available)
    match policy.WhichOneof("policy_choice"):
        case "all":
            return versions
        case "specific":
            wanted = set(policy.specific.versions)
            return [version for version in versions if version in wanted]
        case "latest":
            count = policy.latest.num_versions
            return versions[-count:] if count else []
    return versions[-1:]


def missing_versions(available: Iterable[int], policy: ModelVersionPolicy) -> list[int]:
    """The versions that a specific policy names but that have no directory."""
    return sorted(set(policy.specific.versions) - set(available))


def _version_fault(name: str) -> str:
    if not (name.isascii() and name.isdigit()):
        return "fails to convert to integral number"
    if name[0] == "0" and len(name) > 1:
        return "contains leading zeros in its directory name"
    if len(name) > 19 or int(name) > _MAX_VERSION:
        return "is larger than any version can be"
    return ""


def _ignored(model: str, name: str, fault: str) -> Problem:
    return Problem(
        code="version-name",
        message=f"ignore version directory '{name}' which {fault}",
        file=f"{model}/{name}",
        found=name,
        expected="a whole number such as 1",
        fix="rename the directory, or move it out of the model's directory",
    )


def _subdirectories(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted(
            (entry for entry in entries if _is_directory(entry)), key=lambda entry: entry.name
        )


def _unreadable(path: Path, error: OSError) -> Problem:
    return Problem(
        code="unreadable",
        message=f"failed to open directory {path.name}: {error.strerror}",
        file=path.name,
        found=error.strerror or "an error",
        expected="a directory the server may read",
        fix="check its owner and permissions",
    )


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Follows links. A loop or a dangling link is no directory."""
    try:
        return entry.is_dir()
    except OSError:
        return False
