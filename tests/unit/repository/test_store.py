"""A directory as a store, and the names of models with and without namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.repository.namespace import Entries, model_key, name_of
from naiad.repository.store import LocalStore


def test_models_are_directories(tmp_path: Path) -> None:
    for name in ("b", "a", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    store = LocalStore(tmp_path)
    assert store.names() == {"a", "b", "link"}
    assert store.directory("a") == tmp_path / "a"
    assert [store.directory(name) for name in ("file", "nowhere", "a\0b", "n" * 5000)] == [None] * 4


def test_a_missing_directory_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(NaiadError, match="failed to open directory"):
        LocalStore(tmp_path / "gone").names()


def test_names_without_namespaces() -> None:
    entries = Entries()
    entry = entries.add("m", "m")
    assert entries.add("m", "m") is entry
    assert entries.find("m") is entry
    assert entries.find("other") is None


def test_names_in_namespaces() -> None:
    entries = Entries(is_namespacing=True)
    one, two = (
        entries.add(model_key(f"/repo{number}", "m"), "m", f"/repo{number}") for number in (1, 2)
    )
    once = entries.add(model_key("/repo1", "once"), "once", "/repo1")
    one.is_wanted = two.is_wanted = True
    with pytest.raises(NaiadError, match="There are 2 identifiers of model 'm' in global map"):
        entries.find("m")
    assert entries.find("/repo2::m") is two
    assert entries.find("once") is once
    assert entries.find("nowhere") is None
    two.is_wanted = False
    assert entries.find("m") is one
    assert name_of(one.key) == "m"
