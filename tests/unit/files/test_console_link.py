"""The files with the links to the consoles of this user's servers."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest

from naiad.files.console_link import abandoned_token, read_links, write_link
from naiad.files.private_folder import write_file

URL = "http://127.0.0.1:8000/console#token=t"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "naiad"


def kill(path: Path) -> None:
    """Makes the file that of a server which was killed: of a process that does not exist."""
    link = msgspec.json.decode(path.read_bytes())
    path.unlink()
    write_file(path.with_name("0.console"), msgspec.json.encode({**link, "pid": 2**22 + 1}))


def test_only_its_user_can_read_a_link(folder: Path) -> None:
    path = write_link(URL, "t", 8000)
    assert path.parent == folder
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (link,) = read_links()
    assert (link.url, link.token, link.port, link.pid) == (URL, "t", 8000, os.getpid())
    assert abandoned_token(8000) == ""  # its server runs
    path.chmod(0o644)
    assert read_links() == []


def test_the_next_server_on_the_port_goes_on_with_the_token(folder: Path) -> None:
    kill(write_link(URL, "t", 8000))
    assert (read_links(), abandoned_token(8000), abandoned_token(9000)) == ([], "t", "")
    write_link(URL, "u", 9000)
    assert abandoned_token(8000) == "t"
    write_link(URL, "t", 8000)
    assert not (folder / "0.console").exists()
    kill(write_link(URL, "t", 8000))
    os.utime(folder / "0.console", (0, 0))
    assert abandoned_token(8000) == ""


def test_damaged_files_are_passed_over(folder: Path) -> None:
    write_link(URL, "t", 8000)
    write_file(folder / "1.console", b"{")
    assert len(read_links()) == 1
