"""A fingerprint changes whenever a file changes, and only then; the configuration has its own
digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naiad.repository.watch.fingerprint import Fingerprint, fingerprint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    model = tmp_path / "m"
    (model / "1" / "weights").mkdir(parents=True)
    (model / "configs").mkdir()
    for name in ("config.pbtxt", "configs/a.pbtxt", "1/model.py", "1/weights/w.bin", "labels.txt"):
        (model / name).write_text(name)
        os.utime(model / name, ns=(10**18, 10**18))
    return model


def changed(before: Fingerprint, after: Fingerprint) -> tuple[bool, bool]:
    return before.config != after.config, (before.shared, before.versions) != (
        after.shared,
        after.versions,
    )


def test_reading_changes_nothing(model: Path) -> None:
    assert fingerprint(model) == fingerprint(model)


@pytest.mark.parametrize("name", ["config.pbtxt", "configs/a.pbtxt"])
def test_a_changed_configuration_is_detected(model: Path, name: str) -> None:
    before = fingerprint(model)
    os.utime(model / name, ns=(10**18, 10**18 + 1))
    assert changed(before, fingerprint(model)) == (True, False)


@pytest.mark.parametrize("name", ["1/model.py", "1/weights/w.bin", "labels.txt"])
def test_a_changed_file_is_detected(model: Path, name: str) -> None:
    before = fingerprint(model)
    os.utime(model / name, ns=(10**18, 10**18 + 1))
    assert changed(before, fingerprint(model)) == (False, True)


def test_a_change_of_size_at_the_same_time_is_detected(model: Path) -> None:
    before = fingerprint(model)
    (model / "1/model.py").write_text("longer than before")
    os.utime(model / "1/model.py", ns=(10**18, 10**18))
    assert changed(before, fingerprint(model)) == (False, True)


def test_new_deleted_and_renamed_files_are_detected(model: Path) -> None:
    seen = [fingerprint(model)]
    (model / "1" / "new").touch()
    seen.append(fingerprint(model))
    (model / "1" / "new").rename(model / "1" / "newer")
    seen.append(fingerprint(model))
    (model / "1" / "newer").unlink()
    assert len({tuple(print_.versions.items()) for print_ in seen}) == 3
    assert fingerprint(model) == seen[0]


def test_a_new_link_target_is_a_change(model: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, ns=(10**18, 10**18))
    (model / "1" / "link").symlink_to(tmp_path / "one")
    before = fingerprint(model)
    (model / "1" / "link").unlink()
    (model / "1" / "link").symlink_to(tmp_path / "two")
    assert changed(before, fingerprint(model)) == (False, True)


def test_loops_and_dangling_links_are_no_error(model: Path) -> None:
    (model / "1" / "up").symlink_to(model)
    (model / "1" / "self").symlink_to(model / "1" / "self")
    (model / "1" / "gone").symlink_to("/nowhere")
    assert fingerprint(model) == fingerprint(model)


def test_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    assert fingerprint(tmp_path / "gone") == fingerprint(tmp_path / "gone too")


def test_each_version_has_its_own_digest(model: Path) -> None:
    before = fingerprint(model)
    (model / "2").mkdir()
    (model / "2" / "model.py").touch()
    after = fingerprint(model)
    assert set(after.versions) == {"1", "2"}
    assert before.of_version(1) == after.of_version(1)
    assert after.of_version(1) != after.of_version(2)


def test_a_shared_file_changes_every_version(model: Path) -> None:
    before = fingerprint(model)
    (model / "labels.txt").write_text("other labels")
    assert fingerprint(model).of_version(1) != before.of_version(1)


def test_files_that_an_import_writes_are_ignored(model: Path) -> None:
    before = fingerprint(model)
    (model / "1" / "__pycache__").mkdir()
    (model / "1" / "__pycache__" / "model.cpython-311.pyc").touch()
    assert fingerprint(model) == before
