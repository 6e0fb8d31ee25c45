"""One Ray cluster for all tests of this folder, which run in the order of their files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]  # Importing Ray reads its environment too early.
else:
    from tests.cluster.rig import Rig, make_rig

    @pytest.fixture(scope="session")
    def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
        # Ray puts sockets below this folder, so its path must be short.
        with make_rig(tmp_path_factory.mktemp("c")) as made:
            made.add_node("a", zone="x")
            made.add_node("b", zone="y")
            made.start_controller()
            yield made
