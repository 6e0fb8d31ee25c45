"""A disk that cannot be written: the repository, the home folder and the temporary folder are
mounted read-only. Models load, reload, fail and serve as elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, launch_naiad
from tests.server.model_folder import Control, write_model

MOUNTS = """
set -e
for folder in "$1" "$2" /tmp /var/tmp; do
  mount --bind "$folder" "$folder"
  mount -o remount,ro,bind "$folder"
done
export HOME="$2"
cd "$2"
shift 2
exec "$@"
"""
IS_POSSIBLE = (
    shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
)

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="needs the right to mount (root)")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    repository, home = tmp_path / "repository", tmp_path / "home"
    home.mkdir()
    write_model(repository, "good", "good")
    write_model(repository, "bad", initialize="raise ValueError('no')")
    prefix = ["unshare", "-m", "sh", "-c", MOUNTS, "sh", str(repository), str(home)]
    flags = ["--model-control-mode=explicit", "--load-model=good"]
    one = launch_naiad([str(repository)], flags, prefix=prefix)
    try:
        yield one.wait_started()
    finally:
        one.stop()


def test_serves_from_a_read_only_disk(server: Server) -> None:
    control = Control(server)
    assert control.word("good") == "good"
    assert control.load("good") == (200, "")
    assert control.load("bad")[0] == 400
    assert control.unload("good") == (200, "")
    assert control.load("good") == (200, "")
    assert control.word("good") == "good"


def test_files_of_a_load_request_have_nowhere_to_go(server: Server) -> None:
    """The error is the request's, the reason is in the log, and the model that serves goes on."""
    control = Control(server)
    status, message = control.load(
        "new", config='{"backend": "python"}', **{"file:1/model.py": "cGFzcw=="}
    )
    assert (status, message) == (500, "failed to load 'new', failed to poll from model repository")
    server.wait_for_line("failed to create a temporary directory for the files of model 'new'")
    assert control.word("good") == "good"
