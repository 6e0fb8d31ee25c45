"""Servers shared by the tests of this folder. Each repository is served once per test run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.scene import Scene
from tests.server.harness import Endpoints, Server, naiad, running_elsewhere

REPOSITORIES = Path(__file__).parents[1] / "repositories"


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
