"""The commands that messages show work when they are pasted into a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from naiad.core.install_advice import install_command, shell_command


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in a virtual environment, as `make` makes it."""
    path = tmp_path / ".venv" / "bin" / "naiad"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path.with_name("python")))
    return path


def test_a_command_on_the_search_path_is_its_name(script: Path) -> None:
    assert shell_command(str(script.parent)) == "naiad"


def test_another_command_is_a_path(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shell_command("/nowhere") == ".venv/bin/naiad"
    monkeypatch.chdir(script.parents[1])
    assert shell_command("/nowhere") == "bin/naiad"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shell_command("/nowhere") == str(script)


def test_a_command_of_another_installation_does_not_count(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "naiad"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert shell_command(str(other.parent)) != "naiad"


def test_a_checkout_is_installed_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    assert install_command("onnx") == "pip install '.[onnx]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("onnx") == "pip install '.[onnx]' in the folder of Naiad's checkout"
