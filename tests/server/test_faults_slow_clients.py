"""Clients that send slowly, or nothing: the server closes their connections and serves the others.

The attacks are those of tests/attacks/slow.py; here all of them run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.attacks import slow
from tests.server.gates import in_thread
from tests.server.harness import Server, naiad

pytestmark = pytest.mark.slow

AT_ONCE = [run for run in slow.SLOW if run is not slow.many_watches]


@pytest.fixture(scope="module")
def server(repositories: Path) -> Iterator[Server]:
    flags = ["--model-control-mode=explicit", "--load-model=bystander", *slow.FLAGS]
    with naiad([str(repositories / "faults")], flags) as one:
        yield one


def test_slow_clients_are_disconnected(server: Server) -> None:
    attacks = {run.__name__: in_thread(partial(run, server)) for run in AT_ONCE}
    failures = {name: attack.exception(120) for name, attack in attacks.items()}
    assert {name: failure for name, failure in failures.items() if failure is not None} == {}
    assert server.is_ready()


def test_many_watches_are_cheap(server: Server) -> None:
    slow.many_watches(server)
    assert server.is_ready()
