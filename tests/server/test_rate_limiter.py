"""The rate limiter on a real server: the genuine Triton's transcripts, the order of waiting
requests, and a worker that dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.scenarios import rate_limiter
from tests.scenarios.run import play, serving
from tests.scenarios.scene import Scene
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server, process_name, process_tree

SUITE = SUITES["rate_limiter"]
GOLDEN = read_golden("rate_limiter")


@pytest.fixture(scope="module")
def limited() -> Iterator[tuple[Server, str]]:
    with serving(SUITE, is_genuine=False) as running:
        yield running


@pytest.fixture
def scene(limited: tuple[Server, str]) -> Iterator[Scene]:
    scene = Scene(*limited)
    yield scene
    scene.close()


@pytest.mark.parametrize("name", list(SUITE.scenarios))
def test_behaves_like_the_genuine_triton(limited: tuple[Server, str], name: str) -> None:
    assert play(*limited, SUITE, name) == GOLDEN[name]


def test_a_model_without_resources_does_not_wait(scene: Scene) -> None:
    """In Triton, this request waits behind the one that waits for resources."""
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_half", x=2, on="waits")
    scene.wait_pending("limit_half", 1)
    assert scene.ask("free", "limit_free", x=3, on="free") == [{"Y": [4]}]
    assert scene.batches("limit_half") == []
    gate.open()
    assert scene.response("waits", "waits") == [{"Y": [3]}]
    assert scene.response("holder", "holder") == [{"Y": [2]}]


def test_executions_weighted_by_priority_decide_the_order(scene: Scene) -> None:
    """After one execution each, the model `often` has the value 2 and the model `seldom` has the
    value 5."""
    often, seldom = "limit_often", "limit_seldom"
    assert rate_limiter.order(scene) == [often, often, seldom, often, seldom]


def test_an_unload_finishes_requests_that_wait_for_resources(
    scene: Scene,
) -> None:
    assert rate_limiter.comes_and_goes(scene) == [[{"Y": [3]}], [{"Y": [4]}]]


def worker_of(server: Server, name: str) -> int:
    (pid,) = [
        pid for pid in process_tree(server.pid) if process_name(pid) in (name[:15], name[-15:])
    ]
    return pid


def test_a_worker_that_dies_releases_its_resources(scene: Scene) -> None:
    gate = scene.gate()
    scene.send("holder", "limit_holder", x=1, go=gate, on="holder")
    gate.wait_entered()
    scene.send("waits", "limit_half", x=2, on="waits")
    scene.wait_submitted("waits")
    os.kill(worker_of(scene.server, "limit_holder_0_0"), signal.SIGKILL)
    assert scene.response("waits", "waits") == [{"Y": [3]}]
    assert scene.response("holder", "holder")[0] == "error"
    gate.open()
