"""Servers shared by the tests of this folder: each repository is served once per run, and stopped at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.harness import Server, naiad

REPOSITORIES = Path(__file__).parents[1] / "repositories"


@pytest.fixture(scope="session")
def repositories() -> Path:
    return REPOSITORIES


@pytest.fixture(scope="session")
def main_server() -> Iterator[Server]:
    """All the well-behaved models, in mode none. Tests must not depend on what others have counted there."""
    with naiad([str(REPOSITORIES / "main")]) as server:
        yield server
