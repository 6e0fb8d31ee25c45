"""Workers that die, stop or misbehave: their requests fail at once with a clear error, the workers
restart, and other models are not affected."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client

from tests.server.client_data import number_input
from tests.server.gates import Gate, HttpCall, eventually, text
from tests.server.harness import Server, naiad, process_state, process_tree, wait_gone


@pytest.fixture
def server(repositories: Path) -> Iterator[Server]:
    """Starts a server for each test, because several deaths within a minute are a crash loop."""
    models = (
        "crasher",
        "bystander",
        "decoupled_crash",
        "never_final",
        "prints",
        "forks",
        "calls_itself",
    )
    flags = [
        "--model-control-mode=explicit",
        "--exit-timeout-secs=5",
        *(f"--load-model={model}" for model in models),
    ]
    with naiad([str(repositories / "faults")], flags) as one:
        yield one


def crash(server: Server, how: str) -> HttpCall:
    return HttpCall(server, "/v2/models/crasher/infer", {"inputs": [text("HOW", how)]})


def plain(server: Server, model: str) -> tuple[int, Any]:
    call = HttpCall(
        server,
        f"/v2/models/{model}/infer",
        {"inputs": [{"name": "ANY", "datatype": "INT32", "shape": [1], "data": [0]}]},
    )
    status, _, body = call.response()
    return status, body


@pytest.fixture
def pid(server: Server) -> int:
    """The process id of the crasher's worker."""
    status, _, body = crash(server, "").response()
    assert status == 200, body
    return int(body["outputs"][0]["data"][0])


def assert_recovers(server: Server, old_pid: int) -> None:
    assert not wait_gone([old_pid])
    server.wait_for_line("worker of 'crasher_0' is back")
    assert server.is_ready("/v2/models/crasher/ready")
    status, _, body = crash(server, "").response()
    assert status == 200, body
    assert int(body["outputs"][0]["data"][0]) != old_pid
    assert server.is_ready()
    eventually(
        lambda: "Z" not in [process_state(member) for member in process_tree(server.pid)],
        "all children have been waited for",
    )


def test_an_idle_worker_that_is_killed_restarts(server: Server, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert plain(server, "bystander")[0] == 200
    assert_recovers(server, pid)


def test_the_request_of_a_killed_worker_fails_at_once(
    server: Server, pid: int, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    call = crash(server, f"gate:{gate.path}")
    gate.wait_entered()
    os.kill(pid, signal.SIGKILL)
    status, _, body = call.response()
    assert status in (500, 503)
    assert "crasher" in body["error"]
    assert str(pid) not in body["error"]
    assert "/" not in body["error"]
    assert_recovers(server, pid)


@pytest.mark.parametrize("how", ["exit", "kill", "segv", "abort"])
def test_a_worker_that_dies_in_execute_restarts(server: Server, pid: int, how: str) -> None:
    status, _, body = crash(server, how).response()
    assert status in (500, 503), body
    assert plain(server, "bystander")[0] == 200
    assert_recovers(server, pid)


def test_requests_that_wait_during_a_crash_get_a_response(
    server: Server, pid: int, tmp_path: Path
) -> None:
    """Waiting requests were not sent to the dead worker. The next worker executes them, or they are
    rejected with 503."""
    gate = Gate(tmp_path)
    doomed = crash(server, f"gate:{gate.path}")
    gate.wait_entered()
    waiting = [crash(server, "") for _ in range(4)]
    os.kill(pid, signal.SIGKILL)
    assert doomed.response()[0] in (500, 503)
    assert {call.response()[0] for call in waiting} <= {200, 503}
    assert_recovers(server, pid)


@pytest.mark.parametrize("how", ["system exit", "keyboard interrupt"])
def test_exceptions_that_end_a_process_are_errors_of_the_request(
    server: Server, pid: int, how: str
) -> None:
    status, _, body = crash(server, how).response()
    assert status in (500, 503), body
    eventually(lambda: server.is_ready("/v2/models/crasher/ready"), "the crasher is ready")
    assert crash(server, "").response()[0] == 200


def test_a_stopped_worker_is_busy_not_dead(server: Server, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        call = crash(server, "")
        assert plain(server, "bystander")[0] == 200
        assert server.is_ready("/v2/health/live")
        assert not call.has_response()
    finally:
        os.kill(pid, signal.SIGCONT)
    status, _, body = call.response()
    assert (status, int(body["outputs"][0]["data"][0])) == (200, pid)


def test_a_worker_that_stops_itself_can_be_unloaded(server: Server, pid: int) -> None:
    call = crash(server, "stop")
    eventually(lambda: process_state(pid) == "T", "the worker has stopped")
    call.disconnect()
    assert server.post("/v2/repository/models/crasher/unload", {})[0] == 200
    assert not wait_gone([pid], 20), "a stopped worker must not get the time limit of finalize"
    assert server.post("/v2/repository/models/crasher/load", {})[0] == 200
    assert crash(server, "").response()[0] == 200


def test_a_model_may_close_its_output(server: Server, pid: int) -> None:
    assert crash(server, "close stdout").response()[0] == 200
    assert crash(server, "").response()[0] == 200


def test_a_stream_whose_worker_dies_gets_an_error_and_stays_open(server: Server) -> None:
    received: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: received.put((result, error)))
        client.async_stream_infer("decoupled_crash", [number_input(grpc_client, "ANY", 0)])
        responses = [received.get(timeout=20) for _ in range(3)]
        assert [int(result.as_numpy("OUT")[0]) for result, _ in responses[:2]] == [0, 1]
        assert "decoupled_crash" in str(responses[2][1])
        client.async_stream_infer("bystander", [number_input(grpc_client, "ANY", 0)])
        result, error = received.get(timeout=20)
        assert error is None
        assert int(result.as_numpy("OUT")[0]) == 1
        client.stop_stream()


def test_an_event_stream_whose_worker_dies_ends_with_an_error(server: Server) -> None:
    eventually(lambda: server.is_ready("/v2/models/decoupled_crash/ready"), "the model is ready")
    call = HttpCall(server, "/v2/models/decoupled_crash/generate_stream", {"ANY": 0})
    events = call.connection.getresponse().read().decode().split("\n\n")
    call.disconnect()
    assert '"OUT":0' in events[0].replace(" ", "")
    assert '"error"' in events[-2]


def test_ends_a_request_whose_model_forgets_the_final_flag(server: Server) -> None:
    """The model has dropped its response sender, so no response can follow, and the request
    ends."""
    call = HttpCall(server, "/v2/models/never_final/generate_stream", {"ANY": 0})
    body = call.connection.getresponse().read().decode()
    call.disconnect()
    assert body.startswith('data: {"model_name"')


def test_a_model_may_print_a_lot(server: Server) -> None:
    assert [plain(server, "prints")[0] for _ in range(5)] == [200] * 5


def test_a_model_may_fork(server: Server) -> None:
    assert [plain(server, "forks")[0] for _ in range(5)] == [200] * 5


def test_a_model_that_calls_itself_gets_an_error(server: Server) -> None:
    status, body = plain(server, "calls_itself")
    assert status != 200
    assert "calls_itself" in body["error"]
