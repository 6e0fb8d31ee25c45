"""Files of a load request: they stay in their folder, are private, and are deleted with their last
holder."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.errors import Code, NaiadError
from naiad.repository.config.file_override import _checked, remove_leftovers, write_override_files


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_files_are_written_to_their_paths(temporary: Path) -> None:
    folder = write_override_files(
        "m", {"/1/model.py": b"x", "./2//weights/a.bin": "text", "3/../labels.txt": b""}
    )
    found = {
        str(path.relative_to(folder.directory))
        for path in folder.directory.rglob("*")
        if path.is_file()
    }
    assert found == {"1/model.py", "2/weights/a.bin", "labels.txt"}
    assert folder.directory.name == "m"
    (root,) = temporary.iterdir()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_files_are_deleted_with_their_last_holder(temporary: Path) -> None:
    folder = write_override_files("m", {"1/model.py": b"x"})
    folder.hold()
    folder.hold()
    folder.release()
    folder.drop_if_unheld()
    assert folder.directory.exists()
    folder.release()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "a/..",
        "..",
        ".",
        "",
        "/",
        "/../x",
        "a/../../m/x",
        "a/",
        "a/.",
        "a\\b",
        "..\\x",
        "a\0b",
        "a\nb",
        "a" * 256,
        "a/" * 513 + "b",
        "1/\ud800",
    ],
)
def test_unsafe_paths_are_refused_before_anything_is_written(temporary: Path, path: str) -> None:
    with pytest.raises(NaiadError) as caught:
        write_override_files("m", {"1/model.py": b"x", path: b"evil"})
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message.startswith("Invalid file parameter 'file:")
    assert list(temporary.iterdir()) == []


@given(st.text(st.sampled_from("./\\a1\0 ~"), max_size=12))
def test_an_accepted_path_is_inside_the_folder(path: str) -> None:
    try:
        parts = _checked(path)
    except NaiadError:
        return
    inside = os.path.normpath(os.path.join("/root/m", *parts))
    assert inside.startswith("/root/m/")
    assert inside == os.path.normpath("/root/m/" + path)


def test_a_path_that_is_both_file_and_folder_is_refused(temporary: Path) -> None:
    with pytest.raises(NaiadError, match="another parameter uses the same path"):
        write_override_files("m", {"1": b"x", "1/model.py": b"x"})
    assert list(temporary.iterdir()) == []


def test_a_full_disk_leaves_nothing(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(NaiadError, match="No space left on device"):
        write_override_files("m", {"1/model.py": b"x"})
    assert list(temporary.iterdir()) == []


def test_folders_of_killed_servers_are_removed(temporary: Path) -> None:
    living = temporary / f"naiad-model-{os.getpid()}-x"
    dead = temporary / "naiad-model-999999999-x"
    odd = temporary / "naiad-model-word-x"
    for folder in (living, dead, odd):
        folder.mkdir()
    (temporary / "naiad-model-999999998-x").symlink_to(living)
    remove_leftovers()
    assert {path.name for path in temporary.iterdir()} == {
        living.name,
        odd.name,
        "naiad-model-999999998-x",
    }
