"""The interpreters that models may ask for by version."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from naiad.errors import NaiadError
from naiad.repository.environment.interpreters import find_python, installed_pythons, own_version


def command(folder: Path, name: str, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_a_command_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    """As the scripts of pyenv do for versions that are not chosen."""
    command(tmp_path / "shims", "python3.28", "exit 127")
    command(tmp_path / "shims", "python3.29", "exit 127")
    real = command(tmp_path / "bin", "python3.29", f'exec {sys.executable} "$@"')
    path = os.pathsep.join([str(tmp_path / "shims"), "relative", str(tmp_path / "bin")])
    assert installed_pythons(path) == {own_version(): Path(sys.executable), "3.29": real}
    assert find_python("3.29", path, "m") == real
    with pytest.raises(NaiadError) as error:
        find_python("3.28", path, "m")
    assert error.value.message == (
        "model 'm' asks for Python 3.28, which this machine does not have; it has "
        f"{own_version()}, 3.29"
    )
