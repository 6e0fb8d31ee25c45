"""Readiness of a server: strict or not about failed models, and while it drains."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.grpc as grpc_client

from tests.server.harness import Server, launch_naiad, naiad

INPUTS = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


@pytest.fixture
def repository(repositories: Path, tmp_path: Path) -> str:
    """A repository with a model that serves and one that cannot be loaded."""
    (tmp_path / "identity_fp32").symlink_to(repositories / "main" / "identity_fp32")
    (tmp_path / "initialize_raises").symlink_to(repositories / "faults" / "initialize_raises")
    return str(tmp_path)


@pytest.fixture
def launched() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.stop()


def is_ready_by_grpc(server: Server) -> bool:
    with grpc_client.InferenceServerClient(server.grpc) as client:
        ready: bool = client.is_server_ready()
        return ready


@pytest.mark.parametrize("is_strict", [True, False])
def test_strict_readiness_depends_on_failed_models(repository: str, is_strict: bool) -> None:
    with naiad(
        [repository], ["--exit-on-error=false", f"--strict-readiness={is_strict}"]
    ) as server:
        assert server.is_ready("/v2/health/live")
        assert server.is_ready() is not is_strict
        assert is_ready_by_grpc(server) is not is_strict
        assert server.is_ready("/v2/models/identity_fp32/ready")
        assert not server.is_ready("/v2/models/initialize_raises/ready")
        assert server.post("/v2/models/identity_fp32/infer", INPUTS)[0] == 200


def test_does_not_start_with_a_failed_model_by_default(
    repository: str, launched: list[Server]
) -> None:
    launched.append(launch_naiad([repository]))
    assert launched[0].wait_exit() == 1
    assert any(
        "error: creating server: Internal - failed to load all models" in line
        for line in launched[0].lines
    )


@pytest.fixture
def small(repositories: Path, tmp_path: Path) -> str:
    (tmp_path / "identity_fp32").symlink_to(repositories / "main" / "identity_fp32")
    return str(tmp_path)


def test_a_draining_server_is_not_ready_but_still_serves(
    small: str, launched: list[Server]
) -> None:
    """Load balancers can see that it is not ready before it rejects requests. A second signal ends
    the delay."""
    launched.append(launch_naiad([small], ["--drain-delay-secs=600"]))
    server = launched[0].wait_started()
    assert server.is_ready()
    server.signal(signal.SIGTERM)
    server.wait_for_line("Not ready; stopping in 600 s")
    assert not server.is_ready()
    assert not is_ready_by_grpc(server)
    assert server.is_ready("/v2/health/live")
    status, body = server.post("/v2/models/identity_fp32/infer", INPUTS)
    assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1.0, 2.0])
    assert server.signal_until_exit(signal.SIGTERM) == 1


def test_the_drain_delay_does_not_count_towards_the_exit_timeout(
    small: str, launched: list[Server]
) -> None:
    launched.append(launch_naiad([small], ["--drain-delay-secs=6.5", "--exit-timeout-secs=6"]))
    server = launched[0].wait_started()
    server.signal(signal.SIGTERM)
    server.wait_for_line("Not ready; stopping in 6.5 s")
    assert server.wait_exit() == 0
    assert not any("Exit timeout expired" in line for line in server.lines)
