"""What a frontend knows about models: those it may serve, and those that have left."""

from __future__ import annotations

from typing import Any, cast

import pytest

from naiad.core.model_spec import ModelSpec
from naiad.errors import NaiadError
from naiad.frontend_process.messages import GRPC, Models, RemoteModel
from naiad.frontend_process.remote_core import AbsentModelError, ModelTable, ServingCore
from naiad.shm.arena import Arena


def spec(version: int = 1) -> ModelSpec:
    return ModelSpec("one", version, [version], "python", 0, {}, {})


@pytest.fixture
def table() -> ModelTable:
    return ModelTable(cast(Any, None), Arena())


def test_the_latest_version_has_two_names(table: ModelTable) -> None:
    table.update(
        Models(
            1,
            [
                RemoteModel("one", 1, False, 1, spec(1)),
                RemoteModel("one", 2, True, 2, spec(2)),
            ],
        )
    )
    assert table.model("one", "").version == 2
    assert table.model("one", "2") is table.model("one", "")
    assert table.model("one", "1").version == 1
    assert not table.is_served("one", "3")


def test_a_copy_that_stays_is_the_same_object(table: ModelTable) -> None:
    table.update(Models(1, [RemoteModel("one", 1, True, 1, spec())]))
    model = table.model("one", "")
    table.update(Models(2, [RemoteModel("one", 1, True, 1, spec())]))
    assert table.model("one", "") is model
    table.update(Models(3, [RemoteModel("one", 1, True, 2, spec())]))
    assert table.model("one", "") is not model


def test_a_model_that_has_left_is_not_served_but_known(table: ModelTable) -> None:
    stopped: list[str] = []
    table.update(Models(1, [RemoteModel("one", 1, True, 1, spec())]))
    model = table.model("one", "")
    model.on_stopped.append(lambda: stopped.append("one"))
    table.update(Models(2, []))
    assert stopped == ["one"]
    assert not table.is_served("one", "")
    assert table.model("one", "") is model


def test_rejects_a_model_that_was_never_here(table: ModelTable) -> None:
    with pytest.raises(NaiadError):
        table.model("one", "")


def test_a_model_is_known_but_not_served_while_traces_are_sampled(table: ModelTable) -> None:
    stopped: list[str] = []
    table.update(Models(1, [RemoteModel("one", 1, True, 1, spec())]))
    model = table.model("one", "")
    model.on_stopped.append(lambda: stopped.append("one"))
    table.update(Models(2, [RemoteModel("one", 1, True, 1, spec())], is_traced=True))
    assert stopped == ["one"], "the fast paths do not trace"
    assert not table.is_served("one", "")
    assert table.serving("one", "") is model
    table.update(Models(3, [RemoteModel("one", 1, True, 1, spec())]))
    assert table.is_served("one", "")


def test_streams_do_not_find_a_model_that_has_left(table: ModelTable) -> None:
    core = ServingCore(GRPC, table, cast(Any, None), Arena())
    table.update(Models(1, [RemoteModel("one", 1, True, 1, spec())]))
    assert core.model("one") is table.model("one", "")
    table.update(Models(2, []))
    with pytest.raises(AbsentModelError):
        core.model("one")
