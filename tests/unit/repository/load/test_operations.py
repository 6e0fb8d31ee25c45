"""Reloading and unloading with a fake loader: which copies serve, which are kept, and which are
stopped."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from naiad.errors import NaiadError, internal
from naiad.pb.model_config_pb2 import ModelConfig
from naiad.repository.config.config import ConfigOptions
from naiad.repository.load.lifecycle import State
from naiad.repository.load.loader import Loader
from naiad.repository.load.operations import Operations
from naiad.repository.load.reload import ReloadOptions
from naiad.repository.model import Model
from naiad.repository.model_source import ModelSources
from naiad.repository.namespace import Entries
from naiad.repository.store import LocalStore, Store
from tests.server.model_folder import put, write_ensemble, write_model


class FakeModel(Model):
    """A copy of a model that only records its events."""

    def __init__(self, loader: FakeLoader, config: ModelConfig, version: int) -> None:
        self.config = config
        self.spec = SimpleNamespace(name=config.name, version=version, versions=[version])  # type: ignore[assignment]
        self.number = next(loader.numbers)
        self.instances = []
        self.on_stopped = []
        self._loader = loader
        self.may_stop = asyncio.Event()
        self.may_stop.set()
        self.record("loaded")
        loader.has_loaded.set()

    def record(self, event: str) -> None:
        self._loader.events.append(f"{self.name}:{self.version}#{self.number} {event}")

    def set_versions(self, versions: list[int]) -> None:
        self.spec.versions[:] = versions

    def take_over(self, old: Model) -> None:
        pass

    async def stop(self, timeout_s: float) -> None:
        await self.may_stop.wait()
        self.record("stopped")
        for callback in self.on_stopped:
            callback()

    async def kill(self) -> None:
        self.record("killed")


class FakeLoader:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.numbers = iter(range(1, 1000))
        self.num_failures: dict[tuple[str, int], int] = {}
        """(name, version) -> how many more times it fails to start."""
        self.gates: dict[str, asyncio.Event] = {}
        self.links: dict[int, dict[str, int]] = {}
        """The number of an ensemble's copy -> its steps and the copies that they mean."""
        self.num_loading = 0
        self.max_loading = 0
        self.has_begun = asyncio.Event()
        self.has_loaded = asyncio.Event()

    infer = None

    async def configure(self, config: ModelConfig, version: int, model_dir: Path) -> Any:
        return SimpleNamespace(config_json=b"{}", version=version)

    async def discard(self, configured: object) -> None:
        pass

    async def start_copy(
        self,
        config: ModelConfig,
        version: int,
        versions: list[int],
        model_dir: Path,
        configured: object,
    ) -> Model:
        self.num_loading += 1
        self.max_loading = max(self.max_loading, self.num_loading)
        try:
            await asyncio.sleep(0)
            if config.name in self.gates:
                self.has_begun.set()
                await self.gates[config.name].wait()
        finally:
            self.num_loading -= 1
        if self.num_failures.get((config.name, version), 0):
            self.num_failures[config.name, version] -= 1
            raise internal(f"{config.name}:{version} cannot")
        return FakeModel(self, config, version)

    def build_ensemble(
        self,
        config: ModelConfig,
        version: int,
        versions: list[int],
        model_dir: Path,
        parts: dict[str, Model],
        infer: object,
    ) -> Model:
        model = FakeModel(self, config, version)
        self.links[model.number] = {
            name: cast(FakeModel, part).number for name, part in parts.items()
        }
        return model

    async def resize(self, model: Model, groups: object, model_dir: Path) -> None:
        return None


class Rig:
    def __init__(self, repository: Path, options: ReloadOptions) -> None:
        self.repository = repository
        self.loader = FakeLoader()
        self.entries = Entries()
        sources = ModelSources([LocalStore(repository)], ConfigOptions())
        self.operations = Operations(self.entries, sources, cast(Loader, self.loader), options)

    async def load(self, name: str, **parameters: str) -> None:
        await self.operations.reload(name, dict(parameters))

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        await self.operations.unload(name, unload_dependents=unload_dependents)

    async def events(self) -> list[str]:
        """The events since the last call, after every retired copy has stopped."""
        await self.operations._switch.finish()
        events, self.loader.events = self.loader.events, []
        return events

    def serving(self, name: str) -> dict[int, int]:
        """Returns version -> number of the copy that serves it."""
        return {
            version: cast(FakeModel, model).number
            for version, model in self.entries.by_key[name].models.items()
        }

    def states(self, name: str) -> dict[int, State]:
        return {
            version: status.state for version, status in self.entries.by_key[name].statuses.items()
        }

    def touch(self, name: str, version: int = 1) -> None:
        path = self.repository / name / str(version) / "model.py"
        put(path, path.read_text() + "\n")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    one = Rig(tmp_path, ReloadOptions(max_concurrent_loads=2))
    yield one
    await one.operations.stop()


async def error_of(work: Any) -> str:
    with pytest.raises(NaiadError) as caught:
        await work
    return caught.value.message


async def test_the_new_copy_starts_before_the_old_one_stops(rig: Rig) -> None:
    write_model(rig.repository, "m")
    await rig.load("m")
    rig.touch("m")
    await rig.load("m")
    assert rig.serving("m") == {1: 2}
    assert await rig.events() == ["m:1#1 loaded", "m:1#2 loaded", "m:1#1 stopped"]


async def test_an_unchanged_model_is_not_loaded_again(rig: Rig) -> None:
    write_model(rig.repository, "m")
    for _ in range(3):
        await rig.load("m")
    put(
        rig.repository / "m" / "config.pbtxt",
        (rig.repository / "m" / "config.pbtxt").read_text() + "# a remark\n",
    )
    await rig.load("m")
    assert await rig.events() == ["m:1#1 loaded"]


async def test_a_failed_reload_changes_nothing(rig: Rig) -> None:
    write_model(rig.repository, "m")
    await rig.load("m")
    rig.touch("m")
    rig.loader.num_failures["m", 1] = 1
    assert (
        await error_of(rig.load("m"))
        == "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: m:1 cannot;\n"
    )
    assert rig.serving("m") == {1: 1}
    assert rig.states("m") == {1: State.READY}
    await rig.load("m")
    assert rig.serving("m") == {1: 2}


async def test_one_version_that_fails_fails_the_first_load(rig: Rig) -> None:
    """As in Triton, all versions are loaded or none."""
    write_model(rig.repository, "m", versions=(1, 2), extra="version_policy { all { } }")
    rig.loader.num_failures["m", 2] = 1
    assert "version 2 is at UNAVAILABLE state" in await error_of(rig.load("m"))
    assert rig.serving("m") == {}
    assert await rig.events() == ["m:1#1 loaded", "m:1#1 stopped"]
    assert rig.entries.by_key["m"].statuses[1].reason == "unloaded"
    assert rig.entries.by_key["m"].statuses[2].reason == "Internal: m:2 cannot"


async def test_a_new_version_that_fails_keeps_the_others(rig: Rig) -> None:
    write_model(rig.repository, "m", versions=(1,), extra="version_policy { all { } }")
    await rig.load("m")
    write_model(rig.repository, "m", versions=(2,), extra="version_policy { all { } }")
    rig.loader.num_failures["m", 2] = 1
    await error_of(rig.load("m"))
    assert rig.serving("m") == {1: 1}
    assert rig.states("m") == {1: State.READY, 2: State.UNAVAILABLE}


async def test_a_version_that_failed_and_is_gone_is_forgotten(rig: Rig) -> None:
    """One that has served stays in the index as unloaded, as in Triton."""
    write_model(rig.repository, "m", versions=(1, 2), extra="version_policy { all { } }")
    await rig.load("m")
    write_model(rig.repository, "m", versions=(3,), extra="version_policy { all { } }")
    rig.loader.num_failures["m", 3] = 1
    await error_of(rig.load("m"))
    shutil.rmtree(rig.repository / "m" / "2")
    shutil.rmtree(rig.repository / "m" / "3")
    await rig.load("m")
    await rig.events()
    assert rig.states("m") == {1: State.READY, 2: State.UNAVAILABLE}


async def test_a_disk_that_fails_fails_one_model(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(rig.repository, "m")
    write_model(rig.repository, "n")
    start_copy = rig.loader.start_copy

    async def full(config: ModelConfig, *others: Any) -> Model:
        if config.name == "m":
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start_copy(config, *others)

    monkeypatch.setattr(rig.loader, "start_copy", full)
    failures = await rig.operations.reload_all(["m", "n"])
    assert {name: error.message for name, error in failures.items()} == {
        "m": "failed to load 'm': [Errno 28] No space left on device"
    }
    assert rig.serving("n") == {1: 1}


async def test_only_changed_versions_are_started_again(rig: Rig) -> None:
    write_model(rig.repository, "m", versions=(1, 2, 3), extra="version_policy { all { } }")
    await rig.load("m")
    rig.touch("m", 2)
    await rig.load("m")
    assert rig.serving("m") == {1: 1, 2: 4, 3: 3}
    put(rig.repository / "m" / "labels.txt", "shared by all")
    await rig.load("m")
    assert set(rig.serving("m").values()) == {5, 6, 7}


async def test_a_changed_version_policy_keeps_the_versions_that_stay(rig: Rig) -> None:
    folder = write_model(
        rig.repository,
        "m",
        versions=(1, 2, 3),
        extra="version_policy { latest { num_versions: 2 } }",
    )
    await rig.load("m")
    put(
        folder / "config.pbtxt",
        (folder / "config.pbtxt")
        .read_text()
        .replace("latest { num_versions: 2 }", "specific { versions: [ 1, 3 ] }"),
    )
    await rig.load("m")
    assert rig.serving("m") == {1: 3, 3: 2}
    assert rig.entries.by_key["m"].models[3].spec.versions == [1, 3]
    await rig.events()
    assert rig.states("m") == {1: State.READY, 2: State.UNAVAILABLE, 3: State.READY}


async def test_a_load_that_fails_is_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ReloadOptions(load_retry_count=2))
    write_model(tmp_path, "m")
    rig.loader.num_failures["m", 1] = 2
    await rig.load("m")
    rig.loader.num_failures["m", 1] = 3
    rig.touch("m")
    await error_of(rig.load("m"))
    await rig.operations.stop()


async def test_the_number_of_concurrent_loads_is_limited(rig: Rig) -> None:
    """How far the loads overlap depends on the threads that read the disk, but it is never more
    than two."""
    for number in range(8):
        write_model(rig.repository, f"m{number}")
    assert await rig.operations.reload_all({f"m{number}" for number in range(8)}) == {}
    assert 1 <= rig.loader.max_loading <= 2


async def test_the_old_copy_stops_first_if_the_config_says_so(rig: Rig) -> None:
    write_model(
        rig.repository,
        "m",
        extra='parameters { key: "UNLOAD_BEFORE_RELOAD" value { string_value: "yes" } }',
    )
    await rig.load("m")
    rig.touch("m")
    await rig.load("m")
    assert await rig.events() == ["m:1#1 loaded", "m:1#1 stopped", "m:1#2 loaded"]
    rig.touch("m")
    rig.loader.num_failures["m", 1] = 1
    await error_of(rig.load("m"))
    assert rig.states("m") == {1: State.UNAVAILABLE}


async def test_states_during_load_and_unload(rig: Rig) -> None:
    write_model(rig.repository, "m")
    rig.loader.gates["m"] = asyncio.Event()
    loading = asyncio.ensure_future(rig.load("m"))
    await rig.loader.has_begun.wait()
    assert rig.states("m") == {1: State.LOADING}
    rig.loader.gates["m"].set()
    await loading
    assert rig.states("m") == {1: State.READY}
    cast(FakeModel, rig.entries.by_key["m"].models[1]).may_stop.clear()
    model = cast(FakeModel, rig.entries.by_key["m"].models[1])
    await rig.unload("m")
    assert rig.states("m") == {1: State.UNLOADING}
    model.may_stop.set()
    await rig.events()
    assert rig.states("m") == {1: State.UNAVAILABLE}


async def test_an_ensemble_is_rebuilt_when_its_part_is_reloaded(rig: Rig) -> None:
    write_model(rig.repository, "part")
    write_ensemble(rig.repository, "inner", "part")
    write_ensemble(rig.repository, "outer", "inner")
    await rig.load("outer")
    rig.touch("part")
    await rig.load("part")
    assert [rig.serving(name) for name in ("part", "inner", "outer")] == [{1: 4}, {1: 5}, {1: 6}]


async def test_each_of_many_models_is_loaded_once(rig: Rig) -> None:
    write_model(rig.repository, "part")
    write_model(rig.repository, "bad")
    for name, part in (
        ("inner", "part"),
        ("outer", "inner"),
        ("unfit", "bad"),
        ("round", "about"),
        ("about", "round"),
    ):
        write_ensemble(rig.repository, name, part)
    rig.loader.num_failures["bad", 1] = 5
    failures = await rig.operations.reload_all(
        {"part", "bad", "inner", "outer", "unfit", "round", "about", "missing"}
    )
    assert set(failures) == {"bad", "unfit", "round", "about", "missing"}
    assert rig.loader.num_failures["bad", 1] == 4
    assert "circular dependency" in failures["round"].message
    assert rig.serving("outer") == {1: 3}


async def test_stop_cancels_loads(rig: Rig) -> None:
    write_model(rig.repository, "slow")
    write_model(rig.repository, "m", versions=(1, 2), extra="version_policy { all { } }")
    await rig.load("m")
    rig.loader.gates["slow"] = asyncio.Event()
    loading = asyncio.ensure_future(rig.load("slow"))
    await rig.loader.has_begun.wait()
    await rig.operations.stop()
    assert await error_of(loading) == "Server exiting"
    assert rig.loader.num_loading == 0
    assert [event for event in await rig.events() if "stopped" in event] == [
        "m:1#1 stopped",
        "m:2#2 stopped",
    ]
    assert await error_of(rig.load("m")) == "Server exiting"


async def test_a_copy_that_is_ready_when_its_load_is_cancelled_is_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(rig.repository, "m", versions=(1, 2), extra="version_policy { all { } }")
    gate = asyncio.Event()
    start_copy = rig.loader.start_copy

    async def start_second_slowly(config: ModelConfig, version: int, *rest: Any) -> Model:
        if version == 2:
            await gate.wait()
        return await start_copy(config, version, *rest)

    monkeypatch.setattr(rig.loader, "start_copy", start_second_slowly)
    loading = asyncio.ensure_future(rig.load("m"))
    await rig.loader.has_loaded.wait()
    await rig.operations.stop()
    await error_of(loading)
    assert "m:1#1 killed" in await rig.events()


async def test_a_load_continues_when_its_caller_is_cancelled(rig: Rig) -> None:
    write_model(rig.repository, "m")
    rig.loader.gates["m"] = asyncio.Event()
    loading = asyncio.ensure_future(rig.load("m"))
    await rig.loader.has_begun.wait()
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    rig.loader.gates["m"].set()
    await rig.load("m")
    assert rig.serving("m") == {1: 1}


async def test_a_model_that_cannot_be_read_leaves_no_entry(rig: Rig) -> None:
    assert (
        await error_of(rig.load("nowhere"))
        == "failed to load 'nowhere', failed to poll from model repository"
    )
    assert "nowhere" not in rig.entries.by_key
    os.mkdir(rig.repository / "empty")
    put(rig.repository / "empty" / "config.pbtxt", 'backend: "python"')
    assert await error_of(rig.load("empty")) == (
        "load failed for model 'empty': at least one version must be available under the version "
        "policy of model 'empty'\n"
    )


# Namespaces.


class NamespaceRig(Rig):
    """Two repositories with namespaces. The ensemble `e` is in the first one."""

    def __init__(self, folder: Path) -> None:
        self.loader = FakeLoader()
        self.first, self.second = folder / "first", folder / "second"
        self.first.mkdir()
        self.second.mkdir()
        self.entries = Entries(is_namespacing=True)
        stores: list[Store] = [LocalStore(self.first), LocalStore(self.second)]
        sources = ModelSources(stores, ConfigOptions(), is_namespacing=True)
        self.operations = Operations(
            self.entries, sources, cast(Loader, self.loader), ReloadOptions()
        )

    def meant(self) -> str:
        """The repository whose model the step of `e` means; empty if `e` does not serve."""
        ensemble = self.entries.by_key[f"{self.first}::e"].latest
        if ensemble is None:
            return ""
        number = self.loader.links[cast(FakeModel, ensemble).number]["part"]
        (entry,) = (
            entry
            for entry in self.entries
            if entry.latest is not None and cast(FakeModel, entry.latest).number == number
        )
        return Path(entry.namespace).name


@pytest.fixture
async def namespaces(tmp_path: Path) -> AsyncIterator[NamespaceRig]:
    one = NamespaceRig(tmp_path)
    yield one
    await one.operations.stop()


async def test_a_step_means_its_own_repository_first_loaded_or_not(
    namespaces: NamespaceRig,
) -> None:
    write_model(namespaces.second, "part")
    await namespaces.load("part")
    write_model(namespaces.first, "part")
    write_ensemble(namespaces.first, "e", "part")
    await namespaces.load("e")
    assert namespaces.meant() == "first"


async def test_a_step_of_another_repository_is_meant_until_there_is_an_own_one(
    namespaces: NamespaceRig,
) -> None:
    write_model(namespaces.second, "part")
    write_ensemble(namespaces.first, "e", "part")
    await namespaces.load("e")
    assert namespaces.meant() == "second"
    write_model(namespaces.first, "part")
    await namespaces.load("part")
    assert namespaces.meant() == "first"


async def test_a_step_means_another_repository_when_the_own_model_is_removed(
    namespaces: NamespaceRig,
) -> None:
    for repository in (namespaces.first, namespaces.second):
        write_model(repository, "part")
    write_ensemble(namespaces.first, "e", "part")
    assert await namespaces.operations.reload_all({"part", "e"}) == {}
    assert namespaces.meant() == "first"
    shutil.rmtree(namespaces.first / "part")
    await namespaces.operations.remove(f"{namespaces.first}::part")
    assert namespaces.meant() == "second"
    shutil.rmtree(namespaces.second / "part")
    await namespaces.operations.remove(f"{namespaces.second}::part")
    assert namespaces.meant() == ""
    write_model(namespaces.first, "part")
    await namespaces.load("part")
    assert namespaces.meant() == "first"


async def test_an_unloaded_own_model_is_still_meant(namespaces: NamespaceRig) -> None:
    for repository in (namespaces.first, namespaces.second):
        write_model(repository, "part")
    write_ensemble(namespaces.first, "e", "part")
    await namespaces.load("e")
    assert namespaces.meant() == "first"
    await namespaces.unload("part")
    assert namespaces.meant() == ""
    await namespaces.load("part")
    assert namespaces.meant() == "first"
