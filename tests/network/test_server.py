"""The server and a client that vanishes, or that reads nothing for a while."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.network.hosts import Host, Network
from tests.network.models import write_models
from tests.server.gates import eventually
from tests.server.harness import Server, launch_naiad

NOTICE_S = 32.0
"""30 s, and time for a busy machine."""
SILENCE_S = 50.0
WRITE_S = 100.0
ROOT = Path(__file__).parents[2]


class Rig:
    def __init__(self, network: Network, server: Server) -> None:
        self.host, self.client = network.hosts["server"], network.hosts["client"]
        self.server = server
        self.children: list[subprocess.Popen[str]] = []

    def address(self, kind: str) -> str:
        return f"{self.host.address}:{self.server.port(kind)}"

    def start(self, kind: str, *numbers: int) -> subprocess.Popen[str]:
        """A client that has received something."""
        address = self.address("grpc" if kind == "grpc" else "http")
        command = [sys.executable, "-m", "tests.network.client", kind, address]
        child = self.client.start([*command, *map(str, numbers)], stdout=subprocess.PIPE, cwd=ROOT)
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    def metrics(self) -> str:
        def read() -> str:
            connection = http.client.HTTPConnection("127.0.0.1", self.server.metrics_port)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
            connection.close()
            return page

        return self.host.call(read)

    def faults(self, cause: str) -> int:
        rows = [row for row in self.metrics().splitlines() if f'cause="{cause}"' in row]
        return sum(int(float(row.rsplit(" ", 1)[1])) for row in rows)


@pytest.fixture(params=[1, 2], ids=["one process", "frontends"])
def rig(network: Network, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    host: Host = network.hosts["server"]
    flags = ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0"]
    flags += [
        f"--frontend-processes={request.param}",
        f"--http-write-timeout-secs={2 * SILENCE_S:g}",
    ]
    server = launch_naiad([str(write_models(tmp_path))], flags, prefix=host.prefix)
    rig = Rig(network, server)
    try:
        server.wait_started()
        yield rig
    finally:
        for child in rig.children:
            child.kill()
            child.communicate()
        server.stop()


def test_vanished_clients_of_streams_are_noticed(rig: Rig) -> None:
    """Fast and slow ones. Their requests are cancelled, and the system keeps nothing of them."""
    names = {"sse-20": 1000, "sse-200": 10, "grpc-20": 1000, "grpc-200": 10}
    for name, size in names.items():
        kind, _, pause_ms = name.partition("-")
        rig.start(kind, 1 << 20, int(pause_ms), size)
    rig.start("big", 12_000_000).send_signal(signal.SIGSTOP)
    rig.client.cut()
    cut_s = time.monotonic()
    try:
        rig.server.wait_until(
            lambda lines: all(
                any(f"cancelled: {name}" in line for line in lines) for name in names
            ),
            "the requests of a vanished client go on",
            NOTICE_S,
        )
        print(f"noticed after {time.monotonic() - cut_s:.1f} s")
        eventually(
            lambda: not rig.host.sockets("dst", rig.client.address),
            "the system keeps a connection of the vanished client",
            WRITE_S,
        )
    finally:
        rig.client.heal()


@pytest.mark.parametrize("kind", ["sse", "grpc", "big"])
def test_a_client_that_reads_nothing_for_a_while_loses_nothing(rig: Rig, kind: str) -> None:
    numbers = (12_000_000,) if kind == "big" else (3000, 1, 20_000)
    child = rig.start(kind, *numbers)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    end_s = time.monotonic() + SILENCE_S
    while time.monotonic() < end_s:  # nothing may happen for all this time
        assert rig.faults("vanished") == rig.faults("slow_reader") == 0
        time.sleep(1.0)
    child.send_signal(signal.SIGCONT)
    output, _ = child.communicate(timeout=120)
    assert (output, child.returncode) == ("complete\n", 0)
