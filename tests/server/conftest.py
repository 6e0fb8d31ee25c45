"""Servers shared by the tests of this folder: each repository is served once per run, and stopped
at its end."""

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
    """All the well-behaved models, in mode none. Tests must not depend on what others have counted
    there."""
    elsewhere = running_elsewhere("NAIAD_TEST_MAIN")
    if elsewhere is not None:
        yield elsewhere
        return
    with naiad([str(REPOSITORIES / "main")]) as server:
        yield server


@pytest.fixture(scope="session")
def scheduler_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """Sequences, ensembles and the like; and the folder in which those models note what they are
    given (tests/scenarios)."""
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
    """Explicit model control, nothing loaded at the start. Tests load what they need and unload it
    again."""
    elsewhere = running_elsewhere("NAIAD_TEST_CONTROL")
    if elsewhere is not None:
        yield elsewhere
        return
    with naiad([str(REPOSITORIES / "control")], ["--model-control-mode=explicit"]) as server:
        yield server


@pytest.fixture(scope="session")
def llm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Language models of every backend, all from one tiny random checkpoint."""
    pytest.importorskip("torch", reason="language models need torch")
    pytest.importorskip("transformers", reason="the tests' checkpoint is made by transformers")
    from tests.server.llm_repository import write_repository

    with naiad([str(write_repository(tmp_path_factory.mktemp("llm")))]) as server:
        yield server
