"""Instances of a Python model with costly imports are forked after these imports, where that is
safe."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.gates import eventually
from tests.server.harness import Server, launch_naiad, naiad, wait_gone
from tests.server.model_folder import CONFIG, Control, put

NUM_INSTANCES = 4
PACKAGE = """
import os
WORD = "{word}"
PID = os.getpid()
THREADS = os.environ.get("OMP_NUM_THREADS", "")
{more}
"""
MODEL = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
import costly
from own import OWN_PID

MODULE_PID = os.getpid()


class TritonPythonModel:
    def execute(self, requests):
        assert MODULE_PID == OWN_PID == os.getpid()
        text = f"{costly.WORD}{word} {os.getpid()} {costly.PID} {os.getppid()} {costly.THREADS}"
        output = np.array([text], dtype=np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("WORD", output)]) for _ in requests]
"""

CRASH_IN_TEMPLATE = """
import sys
frame, names = sys._getframe(), []
while frame is not None:
    names.append(frame.f_code.co_name)
    frame = frame.f_back
if "import_ahead" in names:
    os.abort()
"""


class Site:
    """A repository with one model, and the folder of the package that it imports."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.packages = folder / "site"
        self.packages.mkdir()
        self.environment = {"PYTHONPATH": str(self.packages)}

    def write_package(self, word: str, more: str = "") -> None:
        put(self.packages / "costly.py", PACKAGE.format(word=word, more=more))

    def write_model(self, word: str, num_instances: int = NUM_INSTANCES) -> None:
        version = self.repository / "m" / "1"
        version.mkdir(parents=True, exist_ok=True)
        groups = f"instance_group [ {{ kind: KIND_CPU count: {num_instances} }} ]"
        put(version.parent / "config.pbtxt", CONFIG.format(extra=groups))
        put(version / "own.py", "import os\nOWN_PID = os.getpid()\n")
        put(version / "model.py", MODEL.replace("{word}", word))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.write_package("a")
    site.write_model("1")
    return site


@pytest.fixture
def server(site: Site) -> Iterator[Server]:
    flags = ["--model-control-mode=explicit", "--load-model=m", "--log-verbose=1"]
    with naiad([str(site.repository)], flags, site.environment) as one:
        yield one


class Seen:
    """The workers that have responded to a number of requests."""

    def __init__(self, server: Server, num_requests: int = 4 * NUM_INSTANCES) -> None:
        texts = [Control(server).infer("m") for _ in range(num_requests)]
        assert {status for status, _ in texts} == {200}, texts
        rows = [text.split(" ") for _, text in texts]
        self.words = {row[0] for row in rows}
        self.workers = {int(row[1]) for row in rows}
        self.importers = {int(row[2]) for row in rows}
        self.parents = {int(row[3]) for row in rows}
        self.threads = {row[4] for row in rows}


def test_imports_once_and_runs_the_model_in_every_worker(server: Server) -> None:
    seen = Seen(server)
    assert seen.words == {"a1"}
    assert len(seen.importers) == 1
    assert seen.importers == seen.parents
    assert seen.importers.isdisjoint(seen.workers)


def test_the_cpus_are_divided_before_the_imports(site: Site) -> None:
    site.write_model("1", 64)
    flags = ["--model-control-mode=explicit", "--load-model=m"]
    with naiad([str(site.repository)], flags, site.environment) as server:
        assert Seen(server, 1).threads == {"1"}
    with naiad(
        [str(site.repository)], flags, {**site.environment, "OMP_NUM_THREADS": "3"}
    ) as server:
        assert Seen(server, 1).threads == {"3"}


def test_one_instance_needs_no_template(site: Site) -> None:
    site.write_model("1", 1)
    with naiad([str(site.repository)], [], site.environment) as server:
        seen = Seen(server)
        assert seen.importers == seen.workers
        assert seen.threads == {""}


def test_a_reload_sees_changed_code_and_packages(server: Server, site: Site) -> None:
    old = Seen(server)
    site.write_package("b")
    site.write_model("2")
    assert Control(server).load("m") == (200, "")
    new = Seen(server)
    assert new.words == {"b2"}
    assert len(new.importers) == 1
    assert new.importers.isdisjoint(old.importers)
    assert not wait_gone([*old.importers, *old.workers])


def test_an_unload_ends_the_template(server: Server) -> None:
    seen = Seen(server)
    assert Control(server).unload("m") == (200, "")
    assert not wait_gone([*seen.importers, *seen.workers])


def test_instances_restart_when_their_template_dies(server: Server) -> None:
    seen = Seen(server)
    (template,) = seen.importers
    os.kill(template, signal.SIGKILL)
    assert not wait_gone([template, *seen.workers])
    for index in range(NUM_INSTANCES):
        server.wait_for_line(f"worker of 'm_{index}' is back|worker of 'm_0_{index}' is back")
    new = Seen(server)
    assert new.importers == new.parents != seen.importers


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "the imports started the thread",
        ),
        ("FILE = open(__file__)", "costly.py open"),
        (CRASH_IN_TEMPLATE, "the template process ended"),
    ],
)
def test_imports_that_cannot_be_shared_happen_in_every_worker(
    more: str, reason: str, site: Site
) -> None:
    site.write_package("a", more)
    with naiad([str(site.repository)], ["--log-verbose=1"], site.environment) as server:
        server.wait_for_line(f"instances of 'm' import for themselves: .*{reason}")
        seen = Seen(server)
        assert seen.importers == seen.workers


def test_the_error_of_an_import_is_the_workers_own(site: Site) -> None:
    site.write_package("a", "raise ValueError('no licence')")
    server = launch_naiad([str(site.repository)], [], site.environment)
    try:
        assert server.wait_exit() != 0
        assert any("no licence" in line for line in server.lines), server.tail()
        assert any("costly.py" in line for line in server.lines), server.tail()
    finally:
        server.stop()


def test_nothing_outlives_a_killed_server(server: Server) -> None:
    seen = Seen(server)
    server.signal(signal.SIGKILL)
    assert not wait_gone([*seen.importers, *seen.workers])
    eventually(lambda: server.process.poll() is not None, "the server has ended")
