"""Truthful readiness: what requests get while the only worker of a model restarts, limits on
loading, and what the server tells about a worker that is stuck."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

from tests.server.client_data import number_input
from tests.server.gates import Gate, HttpCall, call_gate, eventually
from tests.server.harness import Server, naiad, tree_without_frontends
from tests.server.model_folder import ANY, Control, write_model

EXPLICIT = "--model-control-mode=explicit"


def write_slow_restart(folder: Path) -> Gate:
    """A model that initializes at once the first time. Later it waits at the gate."""
    gate, marker = Gate(folder), folder / "started"
    initialize = (
        f"is_first = not os.path.exists({str(marker)!r}); open({str(marker)!r}, 'w').close(); "
        f"is_first or open({str(gate.path)!r}).read()"
    )
    write_model(folder / "models", "lone", initialize=initialize)
    return gate


def details(server: Server, model: str) -> dict[str, Any]:
    status, body = server.get("/v2/health/details")
    assert status == 200
    (entry,) = [row for row in json.loads(body)["models"] if row["name"] == model]
    instance: dict[str, Any] = entry["instances"][0]
    return {**instance, "model ready": entry["ready"]}


def test_requests_wait_while_a_lone_worker_restarts(tmp_path: Path) -> None:
    gate = write_slow_restart(tmp_path)
    with naiad([str(tmp_path / "models")], ["--worker-restart-wait-secs=60"]) as server:
        control = Control(server)
        pid = control.pid("lone")
        os.kill(pid, signal.SIGKILL)
        gate.wait_entered()
        calls = [HttpCall(server, "/v2/models/lone/infer", ANY) for _ in range(3)]
        assert not server.is_ready("/v2/models/lone/ready")
        state = details(server, "lone")
        assert (state["state"], state["model ready"]) == ("restarting", False)
        assert state["reason"] == "was killed by SIGKILL"
        assert state["down_seconds"] > 0
        assert not any(call.has_response() for call in calls)
        gate.open()
        assert [call.response()[0] for call in calls] == [200] * 3
        assert control.pid("lone") != pid
        assert details(server, "lone")["state"] == "ready"


def test_says_restarting_when_the_restart_takes_too_long(tmp_path: Path) -> None:
    gate = write_slow_restart(tmp_path)
    with naiad([str(tmp_path / "models")], ["--worker-restart-wait-secs=0.2"]) as server:
        control = Control(server)
        os.kill(control.pid("lone"), signal.SIGKILL)
        gate.wait_entered()
        for _ in range(2):  # The first may wait, the second is refused at once.
            status, headers, body = HttpCall(server, "/v2/models/lone/infer", ANY).response()
            assert status == 503
            assert "'lone_0' was killed by SIGKILL and is restarting" in body["error"]
            assert "unknown" not in body["error"]
            assert headers["Retry-After"] == "1"
        with grpc_client.InferenceServerClient(server.grpc) as client:
            with pytest.raises(InferenceServerException) as caught:
                client.infer("lone", [number_input(grpc_client, "ANY", 0)])
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            assert "is restarting" in caught.value.message()
        gate.open()
        eventually(lambda: server.is_ready("/v2/models/lone/ready"), "the model is ready")
        assert control.infer("lone")[0] == 200


@pytest.mark.parametrize("limit", ["flag", "parameter"])
def test_a_load_that_takes_too_long_fails(tmp_path: Path, limit: str) -> None:
    gate = Gate(tmp_path)
    extra = (
        'parameters { key: "LOAD_TIMEOUT_SECS" value { string_value: "0.5" } }'
        if limit == "parameter"
        else ""
    )
    flags = [EXPLICIT, *(["--model-load-timeout-secs=0.5"] if limit == "flag" else [])]
    write_model(tmp_path / "models", "slow", initialize=f"open('{gate.path}').read()", extra=extra)
    with naiad([str(tmp_path / "models")], flags) as server:
        status, message = Control(server).load("slow")
        assert status == 400
        assert "'slow_0' did not load within 0.5 s" in message
        assert "LOAD_TIMEOUT_SECS" in message
        # The server and the template; the worker is gone.
        eventually(lambda: len(tree_without_frontends(server)) == 2, "the worker has ended")


def test_tells_since_when_a_worker_executes(repositories: Path, tmp_path: Path) -> None:
    flags = [EXPLICIT, "--load-model=gate_plain"]
    with naiad([str(repositories / "gates")], flags) as server:
        assert details(server, "gate_plain")["state"] == "ready"
        assert execution_age(server) == 0
        gate = Gate(tmp_path)
        call = call_gate(server, gate, "gate_plain")
        gate.wait_entered()
        eventually(lambda: execution_age(server) > 0.3, "the metric grows")
        state = details(server, "gate_plain")
        assert state["state"] == "executing"
        assert state["executing_seconds"] > 0.3
        gate.open()
        assert call.response()[0] == 200
        eventually(lambda: execution_age(server) == 0, "nothing executes")


def execution_age(server: Server) -> float:
    page = server.get("/metrics", "metrics")[1].decode()
    (line,) = [
        line for line in page.splitlines() if line.startswith("naiad_oldest_execution_seconds{")
    ]
    return float(line.split()[-1])
