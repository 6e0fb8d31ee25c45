"""Which versions of a model the console shows, and which of them a failure is about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from naiad.console.model_reading import VersionReading, _is_gone, _state
from naiad.console.model_row import build_row
from naiad.repository.entry import Entry
from naiad.repository.load.lifecycle import State
from tests.unit.console.test_model_row import reading


def entry(folders: list[int] | None, loaded: list[int], failed: list[int]) -> Entry:
    made = Entry("m", "m")
    if folders is not None:
        made.source = SimpleNamespace(file=SimpleNamespace(versions=folders))  # type: ignore[assignment]
    for version in failed:
        made.status(version).become(State.LOADING)
        made.status(version).become(State.UNAVAILABLE, "it is cut off")
    models: dict[int, Any] = {
        version: SimpleNamespace(version=version, breakdown="", on_change=None)
        for version in loaded
    }
    for version in loaded:
        made.status(version).become(State.LOADING)
        made.status(version).become(State.READY)
    made.set_models(models)
    return made


def shown(found: Entry) -> list[int]:
    return [version for version in sorted(found.statuses) if not _is_gone(found, version)]


def test_a_version_that_no_folder_holds_is_left_out() -> None:
    assert shown(entry([1, 2], loaded=[2], failed=[3])) == [2]
    assert shown(entry([1, 2, 3], loaded=[2], failed=[3])) == [2, 3]
    assert shown(entry([1], loaded=[2], failed=[])) == [2], "it still serves"
    assert shown(entry(None, loaded=[], failed=[3])) == [3], "nothing is known of the folders"


def test_a_failure_says_which_version_it_is_about_and_which_serves() -> None:
    found = entry([2, 3], loaded=[2], failed=[3])
    rows = [
        VersionReading(version, *found.shown_status(version)) for version in sorted(found.statuses)
    ]
    assert _state(found, rows) == ("READY", "it is cut off", 3)
    row = build_row(reading(reason="it is cut off", failed_version=3, serving_version=2), None, 0.0)
    assert row.reason_line == "version 3: it is cut off; version 2 serves"
    alone = build_row(reading(reason="it is cut off", failed_version=3), None, 0.0)
    assert alone.reason_line == "it is cut off"
