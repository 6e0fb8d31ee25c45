"""Models that the server's user may not read fail alone, and `naiad check` names each of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, launch_naiad, naiad_command, naiad_environment
from tests.server.model_folder import Control, write_model

CLOSED = {
    "folder": (".", 0o000),
    "folder_without_search": (".", 0o444),
    "config": ("config.pbtxt", 0o000),
    "version": ("1", 0o000),
    "version_without_search": ("1", 0o444),
    "code": ("1/model.py", 0o000),
}


def without_roots_rights() -> list[str]:
    """A command under which root, too, may read only what its permissions say."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, or another user than root")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("unreadable") / "repository"
    write_model(folder, "good")
    for name, (path, mode) in CLOSED.items():
        write_model(folder, name)
        (folder / name / path).chmod(mode)
    yield folder
    for name, (path, _) in CLOSED.items():
        (folder / name / path).chmod(0o700)


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    flags = ["--exit-on-error=false", "--strict-readiness=false"]
    server = launch_naiad([str(repository)], flags, prefix=without_roots_rights())
    try:
        yield server.wait_started()
    finally:
        server.stop()


def test_the_others_are_served(server: Server) -> None:
    assert Control(server).word("good") == "good"
    index = {row["name"]: row for row in json.loads(server.post("/v2/repository/index", {})[1])}
    assert [name for name, row in index.items() if row.get("state") == "READY"] == ["good"]


def test_each_failure_has_its_reason(server: Server) -> None:
    line = server.wait_for_line("6 of 7 models failed")
    for name, reason in {
        "folder": "failed to open text file for read folder/config.pbtxt: Permission denied",
        "config": "failed to open text file for read config/config.pbtxt: Permission denied",
        "version": "Python model file not found in 'version/1/model.py'",
        "code": "Permission denied",
    }.items():
        assert f"{name}: " in line
        assert reason in line


def test_check_names_each_of_them(repository: Path) -> None:
    done = subprocess.run(
        [*without_roots_rights(), *naiad_command("check", str(repository))],
        env=naiad_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for name in CLOSED:
        assert f"{repository}/{name}/" in done.stdout
    assert f"{repository}/good" not in done.stdout
