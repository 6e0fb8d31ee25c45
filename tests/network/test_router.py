"""The router across a network that loses, cuts and forgets: `make network`, as root.

Each test has replicas a, b and c, a router with default settings (`once` is not idempotent), and
clients on a host of their own, all of them under load while one fault comes and goes.
Rule for all of them: no response is wrong, and nothing that is not idempotent is executed twice.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.certificates import make_certificates
from tests.network.hosts import Host, Network, NoNamespacesError
from tests.server.gates import eventually
from tests.server.harness import Server, naiad_command, naiad_environment

ROOT = Path(__file__).parents[2]
HTTP, GRPC, METRICS = PORTS = (22000, 22001, 22002)
_CONFIG = """backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
_HEAD = """import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

LOG = os.environ["EXEC_LOG"]


def number(request):
    return int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])


def respond(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([value], np.int32))])


class TritonPythonModel:
"""
_COUNT = """    def execute(self, requests):
        for request in requests:
            with open(LOG, "a") as file:
                file.write(f"{MODEL} {number(request)}\\n")
        time.sleep(0.05)
        return [respond(number(request) + 1) for request in requests]
"""
_TICKER = """    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for item in range(20):
                if sender.is_cancelled():
                    break
                sender.send(respond(number(request) + item))
                time.sleep(0.05)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_MODELS = {
    "count": (_CONFIG, "MODEL = 'count'\n" + _HEAD + _COUNT),
    "once": (_CONFIG, "MODEL = 'once'\n" + _HEAD + _COUNT),
    "ticker": (_CONFIG + "model_transaction_policy { decoupled: true }\n", _HEAD + _TICKER),
}


class Row(msgspec.Struct):
    kind: str
    id: int
    began_s: float
    took_s: float
    error: str

    @property
    def is_idempotent(self) -> bool:
        return self.kind.endswith("count")


class Fleet:
    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.folder = folder
        self.servers: dict[str, Server] = {}
        for name, (config, code) in _MODELS.items():
            version = folder / "repository" / name / "1"
            version.mkdir(parents=True)
            (version.parent / "config.pbtxt").write_text(config)
            (version / "model.py").write_text(code)

    def host(self, name: str) -> Host:
        return self.network.hosts[name]

    def _launch(self, host: str, command: list[str]) -> Server:
        environment = naiad_environment({"EXEC_LOG": str(self.folder / f"{host}.log")})
        return Server([*self.host(host).prefix, *command], PORTS, environment)

    def _listen(self, host: str) -> list[str]:
        address = self.host(host).address
        return [
            f"--http-address={address}", f"--grpc-address={address}", f"--http-port={HTTP}",
            f"--grpc-port={GRPC}", f"--metrics-port={METRICS}",
        ]  # fmt: skip

    def serve(self, name: str, *flags: str) -> Server:
        (self.folder / f"{name}.log").touch()
        repository = f"--model-repository={self.folder / 'repository'}"
        command = naiad_command("serve", repository, *self._listen(name), *flags)
        self.servers[name] = self._launch(name, command)
        return self.servers[name]

    def route(self, *names: str, scheme: str = "http", flags: tuple[str, ...] = ()) -> Server:
        lines = ["[model.once]", "idempotent = false"]
        for name in names:
            address = self.host(name).address
            lines += ["[[replica]]", f'url = "{scheme}://{address}:{HTTP}"', f'name = "{name}"']
            lines += [f'grpc = "{address}:{GRPC}"'] if scheme == "http" else []
        config = self.folder / "router.toml"
        config.write_text("\n".join(lines))
        command = naiad_command("router", f"--config={config}", *self._listen("router"))
        self.router = self._launch("router", [*command, "--remote-admin", *flags])
        self.router.wait_started()
        for name in names:
            self.router.wait_for_line(f"replica '{name}' is ready")
        return self.router

    def replicas(self) -> dict[str, dict[str, Any]]:
        def ask() -> bytes:
            connection = http.client.HTTPConnection(self.host("router").address, HTTP, timeout=10)
            connection.request("GET", "/router/replicas")
            body = connection.getresponse().read()
            connection.close()
            return body

        rows = json.loads(self.host("clients").call(ask))["replicas"]
        return {row["name"]: row for row in rows}

    def under_load(self, seconds: float, fault: Callable[[], None]) -> list[Row]:
        """Runs clients for so many seconds, and the fault meanwhile."""
        address = self.host("router").address
        words = ("-m", "tests.network.load", address, str(HTTP), str(GRPC), str(seconds))
        command = [sys.executable, *words]
        clients = self.host("clients").start(command, stdout=subprocess.PIPE, cwd=ROOT)
        try:
            time.sleep(3.0)
            fault()
            self.network.heal()
            text, _ = clients.communicate(timeout=seconds + 240)
        finally:
            clients.kill()
            clients.wait()
        rows = [msgspec.json.decode(line, type=Row) for line in text.splitlines()]
        self._check_all(rows)
        return rows

    def _check_all(self, rows: list[Row]) -> None:
        assert [row for row in rows if row.error.startswith("WRONG")] == []
        executed = Counter(
            line for name in self.servers for line in
            (self.folder / f"{name}.log").read_text().splitlines()
        )  # fmt: skip
        twice = [text for text, count in executed.items() if count > 1]
        assert [text for text in twice if text.startswith("once ")] == []
        kinds = Counter(row.kind for row in rows)
        failed = Counter(row.kind for row in rows if row.error)
        longest = {kind: max(row.took_s for row in rows if row.kind == kind) for kind in kinds}
        print(f"requests {dict(kinds)}; failed {dict(failed)}; longest {longest}; twice {twice}")
        for row in rows:
            if row.error or row.took_s > 4:
                print(row)

    def close(self) -> None:
        for server in [*self.servers.values(), *([self.router] if hasattr(self, "router") else [])]:
            server.stop()


@contextlib.contextmanager
def fleet_on(folder: Path, names: Sequence[str], far: Mapping[str, float] = {}) -> Iterator[Fleet]:
    """Nothing runs yet."""
    try:
        network = Network("router", "clients", *names, network="10.199.8", far=far).__enter__()
    except NoNamespacesError as error:
        pytest.skip(f"network namespaces cannot be made here, which needs root: {error}")
    one = Fleet(network, folder)
    try:
        yield one
    finally:
        one.close()
        network.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_on(tmp_path_factory.mktemp("network"), "abc") as one:
        for name in "abc":
            one.serve(name)
        for server in one.servers.values():
            server.wait_started()
        one.route(*"abc")
        yield one


@pytest.fixture(autouse=True)
def all_ready(request: pytest.FixtureRequest) -> None:
    """A test begins with replicas that are ready and have no past."""
    if "fleet" in request.fixturenames:
        one: Fleet = request.getfixturevalue("fleet")
        for name in one.servers:
            (one.folder / f"{name}.log").write_text("")
        eventually(
            lambda: all(row["state"] == "ready" and not row["ejected"]
                        for row in one.replicas().values()),
            "the replicas are not ready",
        )  # fmt: skip


def failed(rows: list[Row], *, idempotent: bool) -> list[Row]:
    return [row for row in rows if row.error and row.is_idempotent is idempotent]


def test_half_open_connections(fleet: Fleet) -> None:
    """FOUND_2 N1: connections to a that a firewall forgot, for 80 s."""

    def fault() -> None:
        fleet.network.forget_connections("router", "a")
        time.sleep(80)

    rows = fleet.under_load(90, fault)
    assert failed(rows, idempotent=True) == []
    assert max(row.took_s for row in rows) < 25
    assert len(failed(rows, idempotent=False)) <= 4  # each dead connection is met once


def test_power_cycle_of_a_replica(fleet: Fleet) -> None:
    def fault() -> None:
        fleet.network.cut("a")
        os.killpg(fleet.servers["a"].pid, signal.SIGKILL)
        fleet.servers["a"].stop()
        fleet.serve("a").wait_started()
        time.sleep(5)

    rows = fleet.under_load(45, fault)
    assert failed(rows, idempotent=True) == []
    assert max(row.took_s for row in rows) < 40


def test_black_hole_for_large_frames(fleet: Fleet) -> None:
    def fault() -> None:
        fleet.network.lose_large("a")
        time.sleep(50)

    rows = fleet.under_load(60, fault)
    assert failed(rows, idempotent=True) == []
    assert max(row.took_s for row in rows) < 40


def test_a_grpc_port_that_refuses(fleet: Fleet) -> None:
    """FOUND_2 N2."""

    def fault() -> None:
        fleet.host("a").refuse(GRPC)
        try:
            time.sleep(20)
        finally:
            fleet.host("a").heal()

    rows = fleet.under_load(30, fault)
    assert [row for row in rows if row.error and "stream" not in row.kind] == []


@pytest.mark.parametrize("seconds", [12, 33])
def test_after_an_outage(fleet: Fleet, seconds: int) -> None:
    """FOUND_2 N3, N7: nothing waits for the past, and nobody is judged by it."""
    healed_s = 0.0

    def fault() -> None:
        nonlocal healed_s
        begin_s = time.monotonic()
        fleet.network.cut("a")
        time.sleep(seconds)
        fleet.network.heal()
        eventually(lambda: fleet.replicas()["a"]["state"] == "ready", "a is not ready")
        healed_s = time.monotonic() - begin_s + 3.0

    rows = fleet.under_load(seconds + 25, fault)
    assert failed(rows, idempotent=True) == []
    late = [row for row in rows if row.began_s > healed_s + 1 and row.is_idempotent]
    assert late
    assert max(row.took_s for row in late) < 1.0
    assert [row["counters"].get("ejections", 0) for row in fleet.replicas().values()] == [0, 0, 0]


def test_random_faults_on_all_replicas(fleet: Fleet) -> None:
    def fault() -> None:
        end_s = time.monotonic() + 60
        for turn in range(1000):
            if time.monotonic() > end_s:
                return
            name = "abc"[turn * 7 % 3]
            if turn % 4 == 3:
                fleet.network.forget_connections("router", name)
            else:
                fleet.network.cut(name, ("in", "out", "both")[turn % 3])
            time.sleep(0.5 + turn * 13 % 30 / 10)
            fleet.network.heal()
            time.sleep(turn * 5 % 9 / 10)

    rows = fleet.under_load(75, fault)
    assert failed(rows, idempotent=True) == []


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_replica_far_away_stays_ready(tmp_path: Path, scheme: str) -> None:
    """FOUND_2 N5: 400 ms there and back, and the handshakes of TLS."""
    with fleet_on(tmp_path, "a", far={"a": 0.2}) as one:
        serve_flags: tuple[str, ...] = ()
        route_flags: tuple[str, ...] = ()
        if scheme == "https":
            certificates = make_certificates(tmp_path, one.host("a").address)
            serve_flags = (
                "--http-use-ssl=true",
                f"--http-server-cert={certificates.path('server.pem')}",
                f"--http-server-key={certificates.path('server.key')}",
            )
            route_flags = (f"--replica-root-cert={certificates.path('ca.pem')}",)
        one.serve("a", *serve_flags).wait_started()
        one.route("a", scheme=scheme, flags=route_flags)
        for _ in range(3):
            time.sleep(3)
            assert one.replicas()["a"]["state"] == "ready"
        assert not any("is down" in line for line in one.router.lines)
