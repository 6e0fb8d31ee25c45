"""Servers shared by the tests of this folder. Each repository is served once per test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.scene import Scene
from tests.server.harness import (
    Endpoints,
    Server,
    naiad,
    process_state,
    running,
    running_elsewhere,
)

LONGEST_TURN = "naiad_event_loop_busy_max_seconds"
REPOSITORIES = Path(__file__).parents[1] / "repositories"


MAX_BUSY_S = 0.25


@pytest.fixture(autouse=True)
def loops_never_stall(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test in which the event loop of a server computed for long without a pause. The
    server counts the processor time of the loop's thread, so a busy machine does not matter."""
    yield
    marker = request.node.get_closest_marker("max_busy_s")
    max_busy_s = MAX_BUSY_S if marker is None else marker.args[0]
    for server in list(running):
        busy_s = longest_turn_s(server)
        reported_s = reported.get(server.pid, 0.0)
        # The value stays, and the next tests are not at fault.
        reported[server.pid] = max(busy_s, reported_s)
        if busy_s > max(max_busy_s, reported_s):
            pytest.fail(f"the event loop of a server computed for {busy_s:.3f} s without a pause")


reported: dict[int, float] = {}


def longest_turn_s(server: Server) -> float:
    """0 when the server cannot tell: it has died, is stopped, or serves no metrics."""
    if server.process.poll() is not None or process_state(server.pid) in ("T", ""):
        return 0.0
    try:
        page = server.get("/metrics", "metrics", timeout_s=5.0)[1].decode()
    except OSError:
        return 0.0
    rows = [line for line in page.splitlines() if line.startswith(f"{LONGEST_TURN} ")]
    return float(rows[0].split()[1]) if rows else 0.0


@pytest.fixture(scope="session")
def repositories() -> Path:
    return REPOSITORIES


@pytest.fixture(scope="session")
def main_server() -> Iterator[Endpoints]:
    """Serves all well-behaved models, in mode none. Tests must not depend on the counts of other
    tests."""
    elsewhere = running_elsewhere("NAIAD_TEST_MAIN")
    if elsewhere is not None:
        yield elsewhere
        return
    with naiad([str(REPOSITORIES / "main")]) as server:
        yield server


@pytest.fixture(scope="session")
def scheduler_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """Serves sequences, ensembles and the like. Yields the server and the folder in which the
    models record their requests (tests/scenarios)."""
    folder = str(tmp_path_factory.mktemp("records"))
    with naiad([str(REPOSITORIES / "schedulers")], environment={"RECORD_DIR": folder}) as server:
        yield server, folder


@pytest.fixture
def scene(scheduler_server: tuple[Server, str]) -> Iterator[Scene]:
    scene = Scene(*scheduler_server)
    yield scene
    scene.close()


@pytest.fixture(scope="session")
def control_server() -> Iterator[Endpoints]:
    """Serves with explicit model control, and no model loaded at the start. Tests load the models
    that they need and unload them."""
    elsewhere = running_elsewhere("NAIAD_TEST_CONTROL")
    if elsewhere is not None:
        yield elsewhere
        return
    with naiad([str(REPOSITORIES / "control")], ["--model-control-mode=explicit"]) as server:
        yield server


@pytest.fixture(scope="session")
def llm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves language models of every backend, all from one tiny random checkpoint."""
    pytest.importorskip("torch", reason="language models need torch")
    pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
    from tests.server.llm_repository import write_repository

    with naiad([str(write_repository(tmp_path_factory.mktemp("llm")))]) as server:
        yield server
