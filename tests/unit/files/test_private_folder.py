"""Which folders hold what is executed later, in the layouts of machines, containers and pods. A
child process with the uid and the groups of the layout asks, so these tests need root."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.files.private_folder import private_folder

OWNER, GROUP, OTHER = 61000, 61001, 61002
"""Not in /etc/passwd, like those of pods."""


@pytest.fixture
def volume() -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("needs root, to make folders of other users")
    path = Path(tempfile.mkdtemp(prefix="naiad-volume-"))
    yield path
    shutil.rmtree(path)


def ask(path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mount: bool) -> str:
    """What a process of OWNER, with GROUP among its groups, is told; empty if it may be used and
    a file can be written to it."""
    volume = path if path.name.startswith("naiad-volume-") else path.parent
    monkeypatch.setattr(os.path, "ismount", lambda asked: is_mount and Path(asked) == volume)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([GROUP])
            os.setresgid(OWNER, OWNER, OWNER)
            os.setresuid(OWNER, OWNER, OWNER)
            (private_folder(path) / "file").write_text("x")
        except NaiadError as error:
            os.write(theirs, error.message.encode())
        except BaseException as error:
            os.write(theirs, repr(error).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(pid, 0)
    with os.fdopen(ours, "rb") as pipe:
        return pipe.read().decode()


REPLACED = "other users may replace it, because they may write to its parent"
NOT_OURS = "it is not a folder that belongs to this user"


@pytest.mark.parametrize(
    ("layout", "owner", "group", "mode", "is_mount", "itself", "below"),
    [
        ("the image's /cache", OWNER, OWNER, 0o700, True, "", ""),
        ("an emptyDir with fsGroup", 0, GROUP, 0o2777, True, "", ""),
        ("a claim with fsGroup", 0, GROUP, 0o2775, True, "", ""),
        ("a user's folder with umask 002", OWNER, GROUP, 0o775, False, "", ""),
        ("an emptyDir without fsGroup", 0, 0, 0o777, True, NOT_OURS, REPLACED),
        ("a volume of another group", 0, OTHER, 0o2777, True, NOT_OURS, REPLACED),
        ("a folder for everybody", 0, GROUP, 0o2777, False, NOT_OURS, REPLACED),
        ("a volume of another user", OTHER, GROUP, 0o2777, True, NOT_OURS, REPLACED),
        ("/tmp", 0, 0, 0o1777, True, NOT_OURS, ""),
        ("a user's folder for a team", OWNER, OTHER, 0o775, False, "", REPLACED),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_layouts(
    volume: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: str,
    owner: int,
    group: int,
    mode: int,
    is_mount: bool,
    itself: str,
    below: str,
) -> None:
    os.chown(volume, owner, group)
    volume.chmod(mode)
    found = ask(volume / "below", monkeypatch, is_mount=is_mount)
    assert bool(found) == bool(below)
    assert below in found
    found = ask(volume, monkeypatch, is_mount=is_mount)
    assert bool(found) == bool(itself)
    assert itself in found


def test_a_group_with_another_member_is_not_ones_own(
    volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Group:
        gr_gid, gr_mem = GROUP, ["somebody"]

    monkeypatch.setattr("grp.getgrall", lambda: [Group])
    os.chown(volume, 0, GROUP)
    volume.chmod(0o2777)
    assert "choose a folder inside one that belongs to this user" in ask(
        volume / "below", monkeypatch, is_mount=True
    )


def test_what_is_made_in_a_volume_is_private(volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(volume, 0, GROUP)
    volume.chmod(0o2777)
    assert ask(volume / "below", monkeypatch, is_mount=True) == ""
    status = (volume / "below").stat()
    assert (stat.S_IMODE(status.st_mode) & 0o777, status.st_uid) == (0o700, OWNER)
