"""Warm-up on a real server: the genuine Triton's transcripts, and a worker that restarts is warmed
up before it serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.scenarios import control
from tests.scenarios.run import play, serving
from tests.scenarios.scene import Scene
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server, process_name, process_tree

SUITE = SUITES["control"]
GOLDEN = read_golden("control")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    with serving(SUITE, is_genuine=False) as running:
        yield running


@pytest.mark.parametrize("name", list(SUITE.scenarios))
def test_behaves_like_the_genuine_triton(server: tuple[Server, str], name: str) -> None:
    assert play(*server, SUITE, name) == GOLDEN[name]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_error_of_a_load_gives_the_reason(server: tuple[Server, str], protocol: str) -> None:
    module = http_client if protocol == "http" else grpc_client
    with module.InferenceServerClient(
        server[0].http if protocol == "http" else server[0].grpc
    ) as client:
        with pytest.raises(
            InferenceServerException, match="failed to run warmup sample 'sample': too cold"
        ):
            client.load_model("warm_fails")
        with pytest.raises(
            InferenceServerException,
            match="expects 4 bytes, but the data provided from two_bytes only has 2 bytes",
        ):
            client.load_model("warm_short")
        assert not client.is_model_ready("warm_fails")


def test_a_worker_that_restarts_is_warmed_up_again(server: tuple[Server, str]) -> None:
    scene = Scene(*server)
    try:
        control.load(scene, "warm")
        scene.batches("warm")
        (worker,) = [pid for pid in process_tree(server[0].pid) if process_name(pid) == "warm_0_0"]
        os.kill(worker, signal.SIGKILL)
        server[0].wait_for_line("worker of 'warm_0_0' is back")
        assert [len(batch) for batch in scene.wait_batches("warm", 3)] == [2, 2, 1]
        assert scene.ask("one", "warm", x=1) == [{"Y": [2]}]
        control.unload(scene, "warm")
    finally:
        scene.close()
