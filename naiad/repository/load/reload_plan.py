"""What a reload has to do: the versions to start, to resize, to keep and to drop.

In:  what serves, and what was read from disk. Out: a ReloadPlan. Pure; reload.py carries it out.
Triton's rule: a version is started again when its files or its config have changed. A change of
               `version_policy` alone adds and removes versions, and a change of `instance_group`
               alone adds and removes instances.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.entry import Origin
from naiad.repository.model_source import ModelSource

UNLOAD_FIRST = "UNLOAD_BEFORE_RELOAD"
"""Parameter of a model's config for models that do not fit into memory twice: the old copy is
unloaded before the new copy is started."""


class ReloadPlan(msgspec.Struct, frozen=True):
    source: ModelSource
    start: list[int]
    """Versions that need a new copy."""
    resize: list[int]
    """Versions that only need more or fewer instances."""
    keep: list[int]
    drop: list[int]
    origins: dict[int, Origin]
    """The origins of all versions that serve afterwards."""

    @property
    def is_empty(self) -> bool:
        return not (self.start or self.resize or self.drop)


def plan_reload(
    serving: Mapping[int, Origin],
    source: ModelSource,
    *,
    broken: Collection[int] = (),
    is_forced: bool = False,
) -> ReloadPlan:
    """`serving` has the origin of each version that serves. The versions in `broken` are started
    again even if they have not changed, because their workers cannot be restarted. With `is_forced`
    every version is started again, which is for ensembles whose parts have changed."""
    config, groups = _without_counts(source.config), _groups(source.config)
    origins = {
        version: Origin(source.fingerprint.of_version(version), config, groups)
        for version in source.versions
    }
    start: list[int] = []
    resize: list[int] = []
    keep: list[int] = []
    for version, origin in origins.items():
        old = serving.get(version)
        if (
            old is None
            or is_forced
            or version in broken
            or source.folder is not None
            or source.own_file is not None
            or (old.files, old.config) != (origin.files, origin.config)
        ):
            start.append(version)
        elif old.instance_groups != origin.instance_groups:
            resize.append(version)
        else:
            keep.append(version)
    drop = sorted(serving.keys() - origins.keys())
    return ReloadPlan(source, start, resize, keep, drop, origins)


def is_unloaded_first(*configs: ModelConfig) -> bool:
    return any(
        config.parameters[UNLOAD_FIRST].string_value.lower() in ("true", "yes", "on", "1")
        for config in configs
        if UNLOAD_FIRST in config.parameters
    )


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
