"""Failures at the start and end: initialize and finalize, crash loops, signals, and a killed
server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.gates import Gate, HttpCall, Report, call_gate, eventually, in_thread, number
from tests.server.harness import Server, launch_naiad, naiad, process_tree, wait_gone
from tests.server.model_folder import Control, write_model

EXPLICIT = ("--model-control-mode=explicit",)


@pytest.fixture
def faults(repositories: Path) -> list[str]:
    return [str(repositories / "faults")]


@pytest.fixture
def gates(repositories: Path) -> list[str]:
    return [str(repositories / "gates")]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def server(repositories: Path, state: Path) -> Iterator[Server]:
    flags = [*EXPLICIT, "--load-model=bystander", "--exit-timeout-secs=5"]
    with naiad([str(repositories / "faults")], flags, {"TEST_STATE": str(state)}) as one:
        yield one


@pytest.fixture
def launched() -> Iterator[list[Server]]:
    """Servers that a test starts itself. All their processes are killed after the test."""
    started: list[Server] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.signal(signal.SIGKILL)
        one.stop()


def load(server: Server, model: str, timeout_s: float = 30) -> tuple[int, bytes]:
    return server.post(f"/v2/repository/models/{model}/load", {}, timeout_s)


def unload(server: Server, model: str) -> int:
    return server.post(f"/v2/repository/models/{model}/unload", {})[0]


def index(server: Server, model: str) -> dict[str, Any]:
    models = json.loads(server.post("/v2/repository/index", {})[1])
    return next(entry for entry in models if entry["name"] == model)


def is_served(server: Server, model: str = "bystander") -> bool:
    call = HttpCall(
        server,
        f"/v2/models/{model}/infer",
        {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]},
    )
    return call.response()[0] == 200


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("initialize_raises", "no weights here"),
        ("initialize_exits", "exit"),
        ("initialize_segfaults", "SIGSEGV"),
    ],
)
def test_a_model_that_fails_in_initialize(server: Server, model: str, message: str) -> None:
    before = process_tree(server.pid)
    status, body = load(server, model)
    assert status == 400
    assert f"load failed for model '{model}'" in body.decode()
    assert message in body.decode()
    assert index(server, model)["state"] == "UNAVAILABLE"
    assert not server.is_ready(f"/v2/models/{model}/ready")
    assert is_served(server)
    assert not wait_gone([pid for pid in process_tree(server.pid) if pid not in before])


def test_serves_while_a_model_hangs_in_initialize(server: Server, state: Path) -> None:
    report = Report(state, "initializing")
    loading = in_thread(lambda: load(server, "initialize_hangs", timeout_s=60))
    pid = int(report.read())
    assert is_served(server)
    assert index(server, "initialize_hangs").get("state") == "LOADING"
    os.kill(pid, signal.SIGKILL)
    status, body = loading.result(30)
    assert (status, b"initialize_hangs" in body) == (400, True)
    report.close()
    report.path.unlink()


def test_sigterm_stops_a_model_that_initializes(
    faults: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    report = Report(tmp_path, "initializing")
    environment = {"TEST_STATE": str(tmp_path)}
    launched.append(
        launch_naiad(
            faults,
            [*EXPLICIT, "--load-model=initialize_hangs", "--exit-timeout-secs=3"],
            environment,
        )
    )
    worker = int(report.read())
    launched[0].signal(signal.SIGTERM)
    launched[0].wait_exit(20)
    assert not wait_gone([worker])
    report.close()


def test_a_failed_model_stops_the_start_by_default(
    faults: list[str], launched: list[Server]
) -> None:
    launched.append(
        launch_naiad(
            faults, [*EXPLICIT, "--load-model=initialize_raises", "--load-model=bystander"]
        )
    )
    assert launched[0].wait_exit() != 0
    lines = list(launched[0].lines)
    failures = [line for line in lines if "failed to load 'initialize_raises'" in line]
    assert len(failures) == 1
    assert "failed to load 'initialize_raises' version 1: Internal: ValueError" in failures[0]
    assert not [line for line in lines if "\\n" in line], "newlines are not escaped"
    assert max(len(line) for line in lines if line.startswith("|")) <= 100
    last = [line for line in lines if line.strip()][-1]
    assert last.startswith("1 of 2 models failed: initialize_raises: ValueError: no weights here")
    assert any("failed to load all models" in line for line in lines)


def test_starts_with_a_failed_model_if_exit_on_error_is_false(faults: list[str]) -> None:
    flags = [
        *EXPLICIT,
        "--load-model=initialize_raises",
        "--load-model=bystander",
        "--exit-on-error=false",
    ]
    with naiad(faults, flags) as server:
        assert is_served(server)
        assert not server.is_ready("/v2/models/initialize_raises/ready")


def test_a_model_that_raises_in_finalize_is_unloaded(server: Server) -> None:
    assert load(server, "finalize_raises")[0] == 200
    assert is_served(server, "finalize_raises")
    assert unload(server, "finalize_raises") == 200
    eventually(lambda: index(server, "finalize_raises")["state"] == "UNAVAILABLE", "unloaded")
    assert load(server, "finalize_raises")[0] == 200
    assert is_served(server, "finalize_raises")


def test_stops_although_a_model_hangs_in_finalize(
    faults: list[str], launched: list[Server]
) -> None:
    launched.append(
        launch_naiad(faults, [*EXPLICIT, "--load-model=finalize_hangs", "--exit-timeout-secs=2"])
    )
    launched[0].wait_started()
    pids = process_tree(launched[0].pid)
    launched[0].signal(signal.SIGTERM)
    launched[0].wait_exit(20)
    assert not wait_gone(pids)


def test_a_crash_loop_makes_the_model_unavailable_with_a_reason(
    server: Server, state: Path
) -> None:
    assert load(server, "crash_loop")[0] == 200
    (state / "broken").touch()
    try:
        assert not is_served(server, "crash_loop")
        eventually(
            lambda: index(server, "crash_loop").get("state") == "UNAVAILABLE",
            "the breaker opens",
            60,
        )
        assert index(server, "crash_loop")["reason"]
        assert not server.is_ready("/v2/models/crash_loop/ready")
        status, _, body = HttpCall(
            server,
            "/v2/models/crash_loop/infer",
            {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]},
        ).response()
        assert status >= 400, body
        assert is_served(server)
    finally:
        (state / "broken").unlink()
    assert unload(server, "crash_loop") == 200
    assert load(server, "crash_loop")[0] == 200
    assert server.is_ready("/v2/models/crash_loop/ready")


def test_the_is_ready_hook_decides_readiness(server: Server, state: Path) -> None:
    assert load(server, "not_ready")[0] == 200
    assert server.is_ready("/v2/models/not_ready/ready")
    (state / "unready").touch()
    assert not server.is_ready("/v2/models/not_ready/ready")
    assert is_served(server, "not_ready")
    (state / "unready").unlink()
    assert server.is_ready("/v2/models/not_ready/ready")


def test_workers_end_when_the_server_is_killed(
    gates: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    launched.append(launch_naiad(gates))
    launched[0].wait_started()
    gate = Gate(tmp_path)
    call = call_gate(launched[0], gate)
    gate.wait_entered()
    pids = process_tree(launched[0].pid)
    assert len(pids) > 2
    launched[0].signal(signal.SIGKILL)
    assert not wait_gone(pids)
    call.disconnect()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_running_requests_finish_after_a_signal(
    gates: list[str], tmp_path: Path, launched: list[Server], signal_number: int
) -> None:
    launched.append(launch_naiad(gates))
    launched[0].wait_started()
    server, gate = launched[0], Gate(tmp_path)
    running = call_gate(server, gate)
    gate.wait_entered()
    pids = process_tree(server.pid)
    server.signal(signal_number)
    server.wait_for_line("Waiting for in-flight requests to complete")
    assert_refuses(server)
    gate.open()
    assert number(running.response()) == 1
    assert server.wait_exit() == 0
    assert not wait_gone(pids)


def assert_refuses(server: Server) -> None:
    """Checks that a draining server is not ready and accepts no new work, whether or not it still
    listens."""
    try:
        assert not server.is_ready()
        status, _, _ = call_gate(server, None).response()
    except OSError:
        return
    assert status == 503


def test_a_second_sigterm_stops_at_once(
    gates: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    launched.append(launch_naiad(gates))
    launched[0].wait_started()
    server, gate = launched[0], Gate(tmp_path)
    call = call_gate(server, gate)
    gate.wait_entered()
    pids = process_tree(server.pid)
    server.signal(signal.SIGTERM)
    server.wait_for_line("Waiting for in-flight requests to complete")
    assert server.signal_until_exit(signal.SIGTERM) != 0
    assert not wait_gone(pids)
    call.disconnect()


def test_two_signals_at_once_are_one_stop(
    gates: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    launched.append(launch_naiad(gates))
    launched[0].wait_started()
    server, gate = launched[0], Gate(tmp_path)
    call = call_gate(server, gate)
    gate.wait_entered()
    server.signal(signal.SIGTERM)
    server.signal(signal.SIGTERM)
    server.wait_for_line("Waiting for in-flight requests to complete")
    gate.open()
    assert call.response()[0] == 200
    assert server.wait_exit(20) == 0


@pytest.mark.skipif(shutil.which("timeout") is None, reason="there is no `timeout` command")
def test_timeout_stops_the_server_once(
    gates: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    """`timeout` forwards a signal to its child and to the process group of the child."""
    launched.append(launch_naiad(gates, prefix=("timeout", "600")))
    launched[0].wait_started()
    server, gate = launched[0], Gate(tmp_path)
    call = call_gate(server, gate)
    gate.wait_entered()
    server.signal(signal.SIGTERM)
    server.wait_for_line("Waiting for in-flight requests to complete")
    gate.open()
    assert call.response()[0] == 200
    assert server.wait_exit(20) == 0
    assert not any("Second signal" in line for line in server.lines)


def test_the_exit_timeout_limits_the_drain(
    gates: list[str], tmp_path: Path, launched: list[Server]
) -> None:
    launched.append(launch_naiad(gates, ["--exit-timeout-secs=1"]))
    launched[0].wait_started()
    server, gate = launched[0], Gate(tmp_path)
    call = call_gate(server, gate)
    gate.wait_entered()
    pids = process_tree(server.pid)
    server.signal(signal.SIGTERM)
    assert server.wait_exit(20) != 0
    assert any("Exit timeout expired" in line for line in server.lines)
    assert not wait_gone(pids)
    call.disconnect()


def test_threads_that_a_model_leaves_do_not_keep_its_worker(tmp_path: Path) -> None:
    """Fifty threads that never end: the model unloads in time, and the server exits with 0."""
    threads = "[threading.Thread(target=time.sleep, args=(3600,)).start() for _ in range(50)]"
    write_model(tmp_path, "leaks", initialize=f"import threading; {threads}")
    write_model(tmp_path, "other")
    with naiad([str(tmp_path)], [*EXPLICIT, "--load-model=*"]) as server:
        control = Control(server)
        assert control.word("leaks") == "leaks"
        pid = control.pid("leaks")
        assert control.unload("leaks") == (200, "")
        assert not wait_gone([pid], 20)
        assert control.word("other") == "other"
        assert control.load("leaks") == (200, "")
        assert server.stop() == 0
