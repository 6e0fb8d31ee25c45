"""The commands of an operator on one machine: start, apply, status, logs, down. The cluster is on
loopback, and is another one than that of the other files."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.rig import REPOSITORY
from tests.server.harness import free_ports

LOOPBACK = ("127.0.0.1", "::ffff:127.0.0.1", "::1")


class Operator:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_ports()
        with (
            socket.socket() as probe
        ):  # the system's own choice is above the ports of Ray's workers
            probe.bind(("127.0.0.1", 0))
            self.ray_port = probe.getsockname()[1]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._environment = {**kept, "NAIAD_CLUSTER_DIR": str(folder)}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "naiad", "cluster", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def succeed(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    # Ray puts sockets below this folder, so its path must be short.
    folder = Path(tempfile.mkdtemp(prefix="nc", dir="/tmp"))
    made = Operator(folder)
    yield made
    made.run("down", "--grace", "5")
    shutil.rmtree(folder, ignore_errors=True)


def test_a_port_of_rays_workers_is_refused_before_anything_starts(operator: Operator) -> None:
    done = operator.run("start", "--port", "16380")
    assert done.returncode == 1
    assert done.stderr.startswith("error: --port is 16380, but Ray gives the ports 10002 to 19999")
    assert "Traceback" not in done.stderr
    assert list(operator.folder.iterdir()) == []


def test_everything_listens_on_the_address_that_the_operator_gave(operator: Operator) -> None:
    port = str(operator.ray_port)
    text = operator.succeed("start", "--address", "127.0.0.1", "--port", port, "--name", "here")
    assert "Other machines cannot join it" in text
    file = operator.folder / "cluster.json"
    http, grpc, metrics = operator.ports
    deployment = {
        "name": "d",
        "repository": str(REPOSITORY),
        "models": ["add_sub"],
        "resources": {"cpus": 0.5},
    }
    router = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics}
    file.write_text(json.dumps({"router": router, "deployment": [deployment]}))
    operator.succeed("apply", str(file))
    status = json.loads(operator.succeed("status", "--json"))
    [node] = status["nodes"]
    assert (node["name"], node["address"]) == ("here", "127.0.0.1")
    [replica] = status["deployments"][0]["replicas"]
    assert replica["url"].startswith("http://127.0.0.1:")
    others = {}
    for process in psutil.process_iter(["pid", "cmdline"]):
        if str(operator.folder) in " ".join(process.info["cmdline"] or []):
            others[process.pid] = [
                connection.laddr.ip
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
    addresses = {address for own in others.values() for address in own}
    assert addresses <= set(LOOPBACK)
    assert addresses, "Ray's processes were looked at"
    lines = operator.succeed("logs", "d", "--lines", "2").splitlines()
    assert all(line.startswith("[here/d-1]") for line in lines)


def test_down_ends_everything(operator: Operator) -> None:
    operator.succeed("down", "--grace", "5")
    left = [
        process.pid
        for process in psutil.process_iter(["pid", "cmdline"])
        if str(operator.folder) in " ".join(process.info["cmdline"] or [])
    ]
    assert left == []
