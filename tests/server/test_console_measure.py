"""Measurements that the console starts: one at a time, cancelled, with keys, gone with the
server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request

from naiad.keys.api_class import SCOPES
from tests.server.gates import eventually
from tests.server.harness import Server, naiad, naiad_command, naiad_environment

EXAMPLES = str(Path(__file__).parents[2] / "examples" / "repository")
OPTIONS = ["--model-control-mode=explicit", "--load-model=add_sub"]
API = "/console/api/measure"


def call(server: Server, method: str, path: str, body: object = None, key: str = "") -> Any:
    request = Request(
        f"http://{server.http}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"}
        | ({"Authorization": f"Bearer {key}"} if key else server.console_headers()),
        method=method,
    )
    status, reply = server.fetch(request)[:2]
    return status, json.loads(reply) if reply[:1] in (b"{", b"[") else reply


def order(server: Server, key: str = "", **fields: Any) -> int:
    body = {"type": "perf", "model": "add_sub", "concurrency": "1", "interval_ms": 100} | fields
    status, view = call(server, "POST", API, body, key)
    assert status == 200, view
    return int(view["id"])


def state(server: Server, id: int, key: str = "") -> str:
    return str(call(server, "GET", f"{API}/{id}", key=key)[1]["state"])


def wait_done(server: Server, id: int, key: str = "") -> None:
    eventually(lambda: state(server, id, key) == "done", "it is done", 60)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [
        int(child)
        for child in text.split()
        if b"naiad.cli.measure" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_measures_one_at_a_time_and_keeps_the_report() -> None:
    with naiad([EXAMPLES], OPTIONS) as server:
        first, second = order(server), order(server, protocol="grpc")
        assert (state(server, first), state(server, second)) == ("running", "waiting")
        eventually(lambda: len(children(server.pid)) == 1, "the child runs")
        (child,) = children(server.pid)
        nice = min(19, os.getpriority(os.PRIO_PROCESS, server.pid) + 10)
        eventually(lambda: os.getpriority(os.PRIO_PROCESS, child) == nice, "it is nice")
        assert call(server, "GET", f"{API}/{first}/report")[0] == 404
        for id in (first, second):
            wait_done(server, id)
            status, report = call(server, "GET", f"{API}/{id}/report")
            assert (status, b"<title>add_sub</title>" in report) == (200, True)
        assert call(server, "DELETE", f"{API}/{first}")[0] == 200
        assert call(server, "GET", f"{API}/{first}")[0] == 404
        assert len(call(server, "GET", API)[1]["jobs"]) == 1


def test_a_measurement_can_be_cancelled_and_ends_with_the_server() -> None:
    with naiad([EXAMPLES], OPTIONS) as server:
        first, second = order(server, interval_ms=60_000), order(server, interval_ms=60_000)
        eventually(lambda: len(children(server.pid)) == 1, "the child runs")
        (child,) = children(server.pid)
        assert call(server, "DELETE", f"{API}/{first}")[0] == 200
        eventually(lambda: state(server, first) == "cancelled", "it is cancelled")
        eventually(lambda: state(server, second) == "running", "the next one runs")
        assert not Path(f"/proc/{child}").exists()
        eventually(lambda: len(children(server.pid)) == 1, "the next child runs")
        (child,) = children(server.pid)
        assert server.stop() == 0
        eventually(lambda: not Path(f"/proc/{child}").exists(), "the child has ended")


def test_a_measurement_sends_its_requests_with_the_key_of_who_ordered_it(tmp_path: Path) -> None:
    def create(name: str, scopes: str) -> str:
        command = naiad_command(
            "key", "create", name, "--scopes", scopes, "--api-key-file", str(tmp_path / "keys")
        )
        environment = naiad_environment()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    admin, reader = create("admin", ",".join(SCOPES)), create("reader", "inference,statistics")
    with naiad([EXAMPLES], [*OPTIONS, f"--api-key-file={tmp_path / 'keys'}"]) as server:
        assert call(server, "GET", API)[0] == 401
        assert call(server, "POST", API, {"type": "perf", "model": "add_sub"}, reader)[0] == 403
        unknown = call(server, "POST", API, {"type": "perf", "model": "nothing"}, admin)
        assert unknown[0] == 404
        for protocol in ("http", "grpc"):
            id = order(server, admin, protocol=protocol)
            wait_done(server, id, admin)
            report = call(server, "GET", f"{API}/{id}/report", key=admin)[1]
            assert b"naiad_session" not in report
            assert b"Best throughput" in report
