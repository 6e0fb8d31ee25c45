"""What a load has to do: which versions are loaded, which stay as they are, which only get more or
fewer instances, which go.

In:  what serves, and what was read from disk. Out: a LoadPlan. Pure; operations.py carries it out.
     Triton's rule: a version is loaded anew when its files or its config changed; `version_policy`
     alone adds and removes versions, `instance_group` alone adds and removes instances.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.entry import Origin
from naiad.repository.model_source import ModelSource

UNLOAD_FIRST = "UNLOAD_BEFORE_RELOAD"
"""Parameter of a model's config: there is no room for two copies, so the old one goes before the
new one comes."""


class LoadPlan(msgspec.Struct, frozen=True):
    load: list[int]
    resize: list[int]
    keep: list[int]
    drop: list[int]
    origins: dict[int, Origin]
    """Of every version that will serve."""

    @property
    def is_empty(self) -> bool:
        return not (self.load or self.resize or self.drop)


def plan_load(
    loaded: Mapping[int, Origin], source: ModelSource, *, is_forced: bool = False
) -> LoadPlan:
    """`loaded`: the origins of the versions that serve. Forced: nothing is kept, for ensembles
    whose parts changed."""
    config, groups = _without_counts(source.config), _groups(source.config)
    origins = {
        version: Origin(source.fingerprint.of_version(version), config, groups)
        for version in source.versions
    }
    load: list[int] = []
    resize: list[int] = []
    keep: list[int] = []
    for version, origin in origins.items():
        old = loaded.get(version)
        if (
            old is None
            or is_forced
            or source.folder is not None
            or (old.files, old.config) != (origin.files, origin.config)
        ):
            load.append(version)
        elif old.instance_groups != origin.instance_groups:
            resize.append(version)
        else:
            keep.append(version)
    return LoadPlan(load, resize, keep, sorted(loaded.keys() - origins.keys()), origins)


def is_unloaded_first(*configs: ModelConfig) -> bool:
    return any(config.parameters[UNLOAD_FIRST].string_value.lower() in ("true", "yes", "on", "1") for config in configs
               if UNLOAD_FIRST in config.parameters)  # fmt: skip


def copy_of(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def _without_counts(config: ModelConfig) -> bytes:
    rest = copy_of(config)
    rest.ClearField("instance_group")
    rest.ClearField("version_policy")
    return rest.SerializeToString(deterministic=True)


def _groups(config: ModelConfig) -> bytes:
    only = ModelConfig(instance_group=config.instance_group)
    return only.SerializeToString(deterministic=True)
