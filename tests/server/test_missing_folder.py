"""The folder of a model is deleted while its worker dies: the model is not ready, and serves again
when the folder is back."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, naiad
from tests.server.model_folder import Control, write_model

GONE = "the folder of the model is gone; restarting when it is back"


class Rig:
    """A server with the model m, whose folder can be moved away."""

    def __init__(self, server: Server, repository: Path, elsewhere: Path) -> None:
        self.server = server
        self.control = Control(server)
        self.folder = repository / "m"
        self._elsewhere = elsewhere / "m"

    def remove(self) -> None:
        """Removes the folder and kills the worker."""
        pid = self.control.pid("m")
        since = len(self.server.lines)
        self.folder.rename(self._elsewhere)
        os.kill(pid, signal.SIGKILL)
        self.server.wait_for_line(GONE, since=since)

    def restore(self) -> None:
        self._elsewhere.rename(self.folder)

    def is_ready(self) -> bool:
        return self.server.is_ready("/v2/models/m/ready")

    def wait_ready(self) -> None:
        eventually(self.is_ready, "the model serves again")


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> list[str]:
    flags: list[str] = request.param
    return flags


@pytest.fixture
def rig(mode: list[str], tmp_path: Path) -> Iterator[Rig]:
    repository, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_model(repository, "m", "first")
    with naiad([str(repository)], mode) as server:
        yield Rig(server, repository, elsewhere)


NONE: list[str] = []
EXPLICIT = ["--model-control-mode=explicit", "--load-model=m"]
POLL = ["--model-control-mode=poll", "--repository-poll-secs=3600"]
OFTEN = ["--model-control-mode=poll", "--repository-poll-secs=1"]


@pytest.mark.parametrize("mode", [NONE, EXPLICIT, POLL], indirect=True)
def test_serves_again_when_the_folder_is_back(rig: Rig) -> None:
    rig.remove()
    assert not rig.is_ready()
    assert not rig.server.is_ready()
    trouble = "was killed by SIGKILL and cannot be restarted: the folder of the model is gone"
    assert rig.control.infer("m") == (
        503,
        f"model 'm' version 1 is not able to serve: worker of 'm_0' {trouble}",
    )
    ((_, _, state, reason),) = rig.control.index("m")
    assert (state, reason) == ("UNAVAILABLE", f"Internal: worker of 'm_0' {trouble}")
    details = json.loads(rig.server.get("/v2/health/details")[1])
    (instance,) = details["models"][0]["instances"]
    assert (instance["state"], instance["reason"]) == ("files missing", trouble)
    rig.restore()
    rig.wait_ready()
    assert rig.control.word("m") == "first"
    assert rig.server.is_ready()
    assert rig.control.index("m") == [("m", "1", "READY", "")]


@pytest.mark.parametrize("mode", [NONE], indirect=True)
def test_serves_again_when_a_folder_is_copied_back_piece_by_piece(rig: Rig, tmp_path: Path) -> None:
    rig.remove()
    since = len(rig.server.lines)
    (rig.folder / "1").mkdir(parents=True)
    rig.server.wait_for_line("failed to start: Python model file not found", since=since)
    shutil.copy(tmp_path / "elsewhere" / "m" / "1" / "model.py", rig.folder / "1")
    rig.wait_ready()
    assert rig.control.word("m") == "first"


@pytest.mark.parametrize("mode", [NONE], indirect=True)
def test_a_changed_file_ends_a_crash_loop(rig: Rig) -> None:
    """Without waiting for the next of its rare attempts."""
    pid = rig.control.pid("m")
    since = len(rig.server.lines)
    write_model(rig.folder.parent, "m", initialize="raise ValueError('no weights')")
    os.kill(pid, signal.SIGKILL)
    rig.server.wait_for_line("no weights; restarting in 30 s", since=since)
    assert rig.control.index("m")[0][2] == "UNAVAILABLE"
    write_model(rig.folder.parent, "m", "second")
    rig.wait_ready()
    assert rig.control.word("m") == "second"
    assert not [line for line in rig.server.lines[since:] if "Task exception" in line]


@pytest.mark.parametrize("mode", [EXPLICIT], indirect=True)
def test_a_load_does_not_wait_for_the_restart(rig: Rig) -> None:
    rig.remove()
    assert rig.control.load("m") == (
        500,
        "failed to load 'm', failed to poll from model repository",
    )
    rig.restore()
    assert rig.control.load("m") == (200, "")
    assert rig.control.word("m") == "first"
    assert rig.is_ready()


@pytest.mark.parametrize("mode", [OFTEN], indirect=True)
def test_polling_removes_the_model_and_loads_it_again(rig: Rig) -> None:
    pid = rig.control.pid("m")
    since = len(rig.server.lines)
    rig.folder.rename(rig._elsewhere)
    os.kill(pid, signal.SIGKILL)
    rig.server.wait_for_line("successfully unloaded 'm' version 1", since=since)
    assert not rig.is_ready()
    rig.restore()
    rig.wait_ready()
    assert rig.control.word("m") == "first"
