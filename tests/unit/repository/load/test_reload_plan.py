"""Which versions a reload starts, resizes, keeps and drops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from naiad.pb.model_config_pb2 import ModelConfig, ModelInstanceGroup
from naiad.repository.load.reload_plan import ReloadPlan, is_unloaded_first, plan_reload
from naiad.repository.model_source import ModelSource
from naiad.repository.watch.fingerprint import Fingerprint


def source(
    versions: dict[int, str],
    *,
    shared: str = "",
    count: int = 1,
    max_batch_size: int = 0,
    folder: Any = None,
) -> ModelSource:
    """A model whose versions have files with these digests."""
    config = ModelConfig(
        name="m",
        max_batch_size=max_batch_size,
        instance_group=[ModelInstanceGroup(name="m", count=count)],
    )
    config.version_policy.specific.versions.extend(versions)
    files = Fingerprint("", shared, {str(version): digest for version, digest in versions.items()})
    file: Any = None
    return ModelSource("m", "m", None, Path(), config, list(versions), file, files, False, folder)


def steps(plan: ReloadPlan) -> tuple[list[int], list[int], list[int], list[int]]:
    return plan.start, plan.resize, plan.keep, plan.drop


def reload(old: ModelSource, new: ModelSource, *, is_forced: bool = False) -> ReloadPlan:
    return plan_reload(plan_reload({}, old).origins, new, is_forced=is_forced)


OLD = source({1: "a", 2: "b"})


def test_the_first_load_starts_every_version() -> None:
    assert steps(plan_reload({}, OLD)) == ([1, 2], [], [], [])


def test_an_unchanged_model_needs_nothing() -> None:
    plan = reload(OLD, source({1: "a", 2: "b"}))
    assert steps(plan) == ([], [], [1, 2], [])
    assert plan.is_empty


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (source({1: "a", 2: "new"}), ([2], [], [1], [])),
        (source({1: "a", 2: "b"}, shared="new"), ([1, 2], [], [], [])),
        (source({1: "a", 2: "b"}, max_batch_size=8), ([1, 2], [], [], [])),
        (source({1: "a", 2: "b"}, count=3), ([], [1, 2], [], [])),
        (source({1: "a", 2: "new"}, count=3), ([2], [1], [], [])),
        (source({2: "b", 3: "c"}), ([3], [], [2], [1])),
        (source({1: "a", 2: "b"}, folder=object()), ([1, 2], [], [], [])),
    ],
    ids=[
        "one version's file",
        "a shared file",
        "the config",
        "only instance_group",
        "a file and instance_group",
        "only version_policy",
        "files of a load request",
    ],
)
def test_only_what_a_change_concerns_is_started(
    new: ModelSource, expected: tuple[list[int], list[int], list[int], list[int]]
) -> None:
    plan = reload(OLD, new)
    assert steps(plan) == expected
    assert not plan.is_empty
    assert list(plan.origins) == new.versions


def test_a_forced_reload_starts_every_version() -> None:
    assert steps(reload(OLD, OLD, is_forced=True)) == ([1, 2], [], [], [])


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("ON", True), ("no", False)])
def test_either_config_may_ask_for_unloading_first(text: str, expected: bool) -> None:
    config = ModelConfig()
    config.parameters["UNLOAD_BEFORE_RELOAD"].string_value = text
    assert is_unloaded_first(ModelConfig(), config) == expected
    assert is_unloaded_first(config, ModelConfig()) == expected
