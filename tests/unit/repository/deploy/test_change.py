"""Tests that a change of the repository happens as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.repository.deploy.change import Change, recover


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "net" / "1").mkdir(parents=True)
    (tmp_path / "net" / "config.pbtxt").write_text("old")
    (tmp_path / "net" / "requirements.txt").write_text("numpy")
    return tmp_path


def begin(repository: Path) -> Change:
    """Replaces the config, adds a version and a model, and removes a file."""
    change = Change(repository)
    for name in ("net/2", "new"):
        change.stage(name).mkdir(parents=True)
        (change.stage(name) / "file").write_text(name)
        change.put(change.stage(name), repository / name)
    change.stage("net/config.pbtxt").write_text("new")
    change.put(change.stage("net/config.pbtxt"), repository / "net/config.pbtxt")
    change.remove(repository / "net/requirements.txt")
    return change


def contents(repository: Path) -> dict[str, str]:
    return {
        path.relative_to(repository).as_posix(): path.read_text()
        for path in repository.rglob("*")
        if path.is_file() and ".naiad" not in path.parts
    }


OLD = {"net/config.pbtxt": "old", "net/requirements.txt": "numpy"}
NEW = {"net/config.pbtxt": "new", "net/2/file": "net/2", "new/file": "new"}


def test_keeps_everything(repository: Path) -> None:
    begin(repository).keep()
    assert contents(repository) == NEW
    assert list((repository / ".naiad").iterdir()) == []


def test_undoes_everything(repository: Path) -> None:
    begin(repository).undo()
    assert contents(repository) == OLD
    assert list((repository / ".naiad").iterdir()) == []


def test_undoes_what_a_killed_server_began_and_only_that(repository: Path) -> None:
    change = begin(repository)
    recover(repository)
    assert contents(repository) == NEW  # its server lives: the lock is held
    os.close(change._lock)
    recover(repository)
    assert contents(repository) == OLD
    assert list((repository / ".naiad").iterdir()) == []


def test_a_repository_without_deployments_is_not_touched(repository: Path) -> None:
    recover(repository)
    assert not (repository / ".naiad").exists()


def test_a_folder_is_never_replaced(repository: Path) -> None:
    change = Change(repository)
    change.stage("net").mkdir()
    with pytest.raises(NaiadError, match="'net' exists already"):
        change.put(change.stage("net"), repository / "net")
    change.undo()
    assert contents(repository) == OLD


def test_a_repository_that_cannot_be_written_says_so(repository: Path) -> None:
    shutil.rmtree(repository)
    repository.write_text("a file")
    with pytest.raises(NaiadError, match="the repository cannot be written"):
        Change(repository)
