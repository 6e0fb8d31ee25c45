"""What a load or unload affects: the models to load, layer by layer, and the related keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.repository.config.config import ConfigOptions
from naiad.repository.load.ensemble_parts import EnsembleParts
from naiad.repository.load.load_scope import LoadScope, LoadScopes
from naiad.repository.model_source import ModelSources, Override
from naiad.repository.namespace import Entries
from naiad.repository.store import LocalStore
from tests.server.model_folder import write_ensemble, write_model


class Rig:
    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.entries = Entries()
        sources = ModelSources([LocalStore(repository)], ConfigOptions())
        self.scopes = LoadScopes(self.entries, sources, EnsembleParts(self.entries, sources))

    async def of_load(self, name: str, *, should_load_parts: bool = True) -> LoadScope:
        return await self.scopes.of_load(name, Override(), should_load_parts=should_load_parts)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """An ensemble `outer` of an ensemble `inner` of a model `part`, none of which serves."""
    write_model(tmp_path, "part")
    write_ensemble(tmp_path, "inner", "part")
    write_ensemble(tmp_path, "outer", "inner")
    return Rig(tmp_path)


def layers(scope: LoadScope) -> list[list[str]]:
    return [[node.name for node in layer] for layer in scope.layers()]


async def test_parts_are_in_earlier_layers_than_their_ensembles(rig: Rig) -> None:
    scope = await rig.of_load("outer")
    assert layers(scope) == [["part"], ["inner"], ["outer"]]
    assert scope.keys == {"part", "inner", "outer"}
    assert [node.name for node in scope.nodes if node.is_requested] == ["outer"]


async def test_parts_that_are_loaded_separately_are_left_out(rig: Rig) -> None:
    scope = await rig.of_load("outer", should_load_parts=False)
    assert layers(scope) == [["outer"]]
    assert scope.keys == {"inner", "outer"}


async def test_ensembles_of_a_model_are_related_to_it(rig: Rig) -> None:
    rig.entries.add("inner", "inner").part_keys = {"part"}
    rig.entries.add("outer", "outer").part_keys = {"inner"}
    scope = await rig.of_load("part")
    assert layers(scope) == [["part"]]
    assert scope.keys == {"part", "inner", "outer"}


async def test_a_cycle_of_ensembles_is_an_error(rig: Rig) -> None:
    write_ensemble(rig.repository, "part", "outer")
    (node,) = (await rig.of_load("outer")).nodes
    assert node.source is None
    assert node.error is not None
    assert node.error.message == (
        "load failed for model 'outer': circular dependency between ensembles: "
        "outer -> ... -> part -> outer\n"
    )


async def test_a_missing_model_is_an_error(rig: Rig) -> None:
    scope = await rig.of_load("nowhere")
    (node,) = scope.nodes
    assert scope.keys == {"nowhere"}
    assert node.source is None
    assert node.is_requested
    assert node.error is not None
    assert node.error.message == "failed to load 'nowhere', failed to poll from model repository"


async def test_an_unload_includes_parts_only_if_they_are_unloaded_too(rig: Rig) -> None:
    rig.entries.add("part", "part")
    rig.entries.add("inner", "inner").part_keys = {"part"}
    alone = await rig.scopes.of_unload("inner", unload_dependents=False)
    with_parts = await rig.scopes.of_unload("inner", unload_dependents=True)
    assert alone.keys == {"inner"}
    assert with_parts.keys == {"inner", "part"}
    assert alone.layers() == []


async def test_a_removal_includes_the_ensembles_of_the_model(rig: Rig) -> None:
    rig.entries.add("inner", "inner").part_keys = {"part"}
    assert (await rig.scopes.of_removal("part")).keys == {"part", "inner"}


def test_models_wait_for_their_parts_but_not_in_a_cycle(rig: Rig) -> None:
    assert rig.scopes.waiting_for({"part", "inner", "outer"}) == {
        "part": set(),
        "inner": {"part"},
        "outer": {"inner"},
    }
    write_ensemble(rig.repository, "part", "outer")
    assert rig.scopes.waiting_for({"part", "inner", "outer"}) == {
        "part": set(),
        "inner": set(),
        "outer": set(),
    }
