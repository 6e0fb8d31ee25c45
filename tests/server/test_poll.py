"""Poll mode on a real server: it follows additions, changes and removals, and errors do not stop
it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, naiad
from tests.server.model_folder import Control, model_code, put, write_ensemble, write_model


class Polled:
    """A repository that a server polls. Each step changes only one file of an existing model,
    because the server may poll between two changes, and waits for the lines that the server
    logs."""

    def __init__(self, server: Server, repository: Path) -> None:
        self.server = server
        self.repository = repository
        self.control = Control(server)
        self._since = len(server.lines)

    def wait_for(self, *texts: str) -> None:
        """Waits for these texts in the lines since the last step."""
        for text in texts:
            self.server.wait_for_line(re.escape(text), since=self._since)
        self._since = len(self.server.lines)


@pytest.fixture
def polled(tmp_path: Path) -> Iterator[Polled]:
    write_model(tmp_path, "m", "first")
    write_model(tmp_path, "bystander")
    with naiad(
        [str(tmp_path)], ["--model-control-mode=poll", "--repository-poll-secs=1"]
    ) as server:
        yield Polled(server, tmp_path)


def test_follows_changes_of_the_repository(polled: Polled) -> None:
    """All steps are in one test, because each step takes two polls."""
    control, repository = polled.control, polled.repository
    pid = control.pid("bystander")
    assert control.load("m") == (
        503,
        "explicit model load / unload is not allowed if polling is enabled",
    )

    write_model(repository, "new")
    write_ensemble(repository, "ensemble", "new")
    put(repository / "m" / "1" / "model.py", model_code("second"))
    polled.wait_for("successfully loaded 'm' version 1", "successfully loaded 'ensemble' version 1")
    assert (control.word("new"), control.word("ensemble"), control.word("m")) == (
        "new",
        "new",
        "second",
    )

    put(repository / "m" / "1" / "model.py", "def (:")
    put(repository / "new" / "config.pbtxt", "no config {{{")
    polled.wait_for(
        "failed to load 'm' version 1: Internal: SyntaxError",
        "Poll failed for model directory 'new'",
    )
    assert (control.word("new"), control.word("m")) == ("new", "second"), (
        "the old models still serve"
    )
    assert polled.server.is_ready()

    put(repository / "m" / "1" / "model.py", model_code("third"))
    shutil.rmtree(repository / "new")
    polled.wait_for(
        "successfully loaded 'm' version 1",
        "successfully unloaded 'new' version 1",
        "successfully unloaded 'ensemble'",
    )
    assert control.word("m") == "third"
    assert control.infer("new") == (
        404,
        "Request for unknown model: 'new' has no available versions",
    )
    assert control.index("new", "ensemble") == [("ensemble", "1", "UNAVAILABLE", "unloaded")]

    write_model(repository, "new", "again")
    polled.wait_for(
        "successfully loaded 'new' version 1", "successfully loaded 'ensemble' version 1"
    )
    assert control.word("ensemble") == "again"

    elsewhere = repository.with_name("elsewhere")
    repository.rename(elsewhere)
    polled.wait_for("failed to poll the model repositories")
    assert control.word("m") == "third", "a missing repository is not an empty repository"
    elsewhere.rename(repository)
    put(repository / "m" / "1" / "model.py", model_code("fourth"))
    polled.wait_for("successfully loaded 'm' version 1")
    assert control.word("m") == "fourth"
    assert control.pid("bystander") == pid


def test_retries_a_model_that_failed_at_the_start(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    write_model(tmp_path / "models", "m", initialize=f"open({str(flag)!r})")
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1", "--exit-on-error=false"]
    with naiad([str(tmp_path / "models")], flags) as server:
        assert not server.is_ready()
        flag.touch()
        server.wait_for_line("successfully loaded 'm' version 1")
        assert Control(server).word("m") == "m"
        assert server.is_ready()
