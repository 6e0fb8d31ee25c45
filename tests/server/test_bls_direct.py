"""Blocking calls directly between workers. Except for their speed, they must behave like calls
through the server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import Server, naiad
from tests.server.model_folder import Control, put

FAIL, DIE, CIRCLE, BY_SENDER, LARGE, FROM_THREAD = -1, -2, -3, -4, -5, -6
LARGE_COUNT = 100_000
CALLED_CONFIG = """backend: "python"
input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [
  { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] },
  { name: "WHO" data_type: TYPE_INT32 dims: [ 3 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
CALLER_CONFIG = """backend: "python"
input [ { name: "PLAN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
CALLED = """
import os
import signal
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

VERSION = 1


def call_back():
    plan = pb_utils.Tensor("PLAN", np.array([1], np.int32))
    request = pb_utils.InferenceRequest(
        model_name="caller", inputs=[plan], requested_output_names=["RESULT"]
    )
    response = request.exec()
    message = response.error().message() if response.has_error() else "the caller responded"
    raise pb_utils.TritonModelException(message)


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = int(pb_utils.get_input_tensor_by_name(request, "X").as_numpy()[0])
        is_direct = request._work.handle >= 1 << 40
        y = np.array([x + 1], np.int32)
        if x == -1:
            error = pb_utils.TritonError("as asked", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        if x == -2:
            os.kill(os.getpid(), signal.SIGKILL)
        if x == -3:
            call_back()
        if x == -5:
            y = np.arange(100_000, dtype=np.int32)
        if x == -6:
            messages = []
            thread = threading.Thread(target=lambda: messages.append(self.error_message()))
            thread.start()
            thread.join()
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(messages[0]))
        who = np.array([is_direct, os.getpid(), VERSION], np.int32)
        outputs = [pb_utils.Tensor("Y", y), pb_utils.Tensor("WHO", who)]
        response = pb_utils.InferenceResponse(outputs)
        if x == -4:
            sender = request.get_response_sender()
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            threading.Thread(target=sender.send, args=(response, final)).start()
            return None
        return response

    def error_message(self):
        try:
            call_back()
        except pb_utils.TritonModelException as error:
            return str(error)
"""
CALLER = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        plan = pb_utils.get_input_tensor_by_name(request, "PLAN").as_numpy()
        result = {"pid": os.getpid(), "calls": [self.call(x) for x in plan]}
        text = np.array([json.dumps(result)], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", text)])

    def call(self, x):
        inputs = [pb_utils.Tensor("X", np.array([x], np.int32))]
        request = pb_utils.InferenceRequest(
            model_name="called", inputs=inputs, requested_output_names=["Y", "WHO"]
        )
        response = request.exec()
        if response.has_error():
            return {"error": response.error().message(), "code": response.error().code()}
        y = pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        who = pb_utils.get_output_tensor_by_name(response, "WHO").as_numpy()
        is_direct, pid, version = (int(n) for n in who)
        return {
            "y": int(y[-1]),
            "size": len(y),
            "is_direct": bool(is_direct),
            "pid": pid,
            "version": version,
        }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, config, code in (
        ("called", CALLED_CONFIG, CALLED),
        ("caller", CALLER_CONFIG, CALLER),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        put(tmp_path / name / "config.pbtxt", config)
        put(tmp_path / name / "1" / "model.py", code)
    return tmp_path


@pytest.fixture
def server(repository: Path) -> Iterator[Server]:
    flags = ["--model-control-mode=explicit", "--load-model=called", "--load-model=caller"]
    with naiad([str(repository)], flags) as one:
        yield one


def run(server: Server, *plan: int) -> Any:
    body = {
        "inputs": [{"name": "PLAN", "datatype": "INT32", "shape": [len(plan)], "data": list(plan)}]
    }
    status, response = server.post("/v2/models/caller/infer", body, 60)
    assert status == 200, response
    return json.loads(json.loads(response)["outputs"][0]["data"][0])


def calls(server: Server, *plan: int) -> list[Any]:
    result: list[Any] = run(server, *plan)["calls"]
    return result


def borrow(server: Server) -> Any:
    """Calls until the calls are direct."""
    last = calls(server, *range(40))[-1]
    assert last["is_direct"]
    return last


def ask_called(server: Server, x: int) -> Any:
    status, response = server.post(
        "/v2/models/called/infer",
        {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1], "data": [x]}]},
    )
    assert status == 200, response
    outputs = {output["name"]: output["data"] for output in json.loads(response)["outputs"]}
    return outputs["Y"][0]


def counted(server: Server) -> dict[str, Any]:
    (statistics,) = json.loads(server.get("/v2/models/called/stats")[1])["model_stats"]
    success, fail = statistics["inference_stats"]["success"], statistics["inference_stats"]["fail"]
    return {
        "inferences": statistics["inference_count"],
        "executions": statistics["execution_count"],
        "success": success["count"],
        "fail": fail["count"],
    }


def test_calls_become_direct_and_are_counted_like_other_calls(server: Server) -> None:
    for number in range(1, 4):
        results = calls(server, *range(50))
        assert [call["y"] for call in results] == [x + 1 for x in range(50)]
        assert results[-1]["is_direct"]
        assert counted(server) == {
            "inferences": 50 * number,
            "executions": 50 * number,
            "success": 50 * number,
            "fail": 0,
        }


def test_without_direct_calls_every_call_goes_through_the_server(repository: Path) -> None:
    flags = ["--model-control-mode=explicit", "--load-model=called", "--load-model=caller"]
    with naiad([str(repository)], [*flags, "--direct-calls=false"]) as server:
        results = calls(server, *range(50))
        assert [call["y"] for call in results] == [x + 1 for x in range(50)]
        assert not any(call["is_direct"] for call in results)
        failed, after = calls(server, FAIL, 2)
        assert (failed["error"], after["y"]) == ("as asked", 3)
        assert counted(server) == {
            "inferences": 51,
            "executions": 52,
            "success": 51,
            "fail": 1,
        }


def test_serves_other_clients_during_direct_calls(server: Server) -> None:
    borrow(server)
    with ThreadPoolExecutor(4) as pool:
        long = [pool.submit(calls, server, *range(300)) for _ in range(2)]
        assert [ask_called(server, x) for x in range(100)] == [x + 1 for x in range(100)]
        for future in long:
            assert [call["y"] for call in future.result()] == [x + 1 for x in range(300)]
    assert counted(server)["success"] == 40 + 600 + 100


def test_errors_of_the_called_model(server: Server) -> None:
    borrow(server)
    before, failed, after = calls(server, 1, FAIL, 2)
    assert (before["y"], before["is_direct"], after["y"], after["is_direct"]) == (2, True, 3, True)
    assert failed["error"] == "as asked"
    assert counted(server)["fail"] == 1


def test_a_response_by_response_sender(server: Server) -> None:
    borrow(server)
    by_sender, after = calls(server, BY_SENDER, 5)
    assert (by_sender["y"], by_sender["is_direct"]) == (BY_SENDER + 1, True)
    assert (after["y"], after["is_direct"]) == (6, True)


def test_a_large_response_arrives_and_later_calls_are_not_direct(server: Server) -> None:
    borrow(server)
    large, *rest = calls(server, LARGE, *range(40))
    assert (large["size"], large["y"], large["is_direct"]) == (LARGE_COUNT, LARGE_COUNT - 1, True)
    assert [call["y"] for call in rest] == [x + 1 for x in range(40)]
    assert not any(call["is_direct"] for call in rest)
    assert ask_called(server, 1) == 2


@pytest.mark.parametrize("how", [CIRCLE, FROM_THREAD])
def test_rejects_a_cycle_behind_a_direct_call(server: Server, how: int) -> None:
    borrow(server)
    circle, after = calls(server, how, 1)
    assert (
        "'called' -> 'caller' -> 'called' is a cycle of calls that would wait forever"
        in circle["error"]
    )
    assert after["y"] == 2


def test_the_called_worker_dies(server: Server) -> None:
    old = borrow(server)["pid"]
    before, died = calls(server, 1, DIE)
    assert before["is_direct"]
    assert "its worker process ended" in died["error"]
    server.wait_for_line("worker of 'called_0_0' is back")
    new = borrow(server)
    assert new["pid"] != old
    assert ask_called(server, 1) == 2


def test_the_calling_worker_dies(server: Server) -> None:
    pid = run(server, *range(40))["pid"]
    os.kill(pid, signal.SIGKILL)
    assert ask_called(server, 1) == 2
    server.wait_for_line("worker of 'caller_0_0' is back")
    borrow(server)


def test_the_called_model_is_reloaded_during_calls(server: Server, repository: Path) -> None:
    borrow(server)
    control = Control(server)
    with ThreadPoolExecutor(1) as pool:
        for number in range(2, 7):
            running = pool.submit(calls, server, *range(400))
            put(
                repository / "called" / "1" / "model.py",
                CALLED.replace("VERSION = 1", f"VERSION = {number}"),
            )
            assert control.load("called") == (200, "")
            assert [call.get("y") for call in running.result()] == [x + 1 for x in range(400)]
            assert calls(server, 1)[0]["version"] == number


def test_a_call_of_the_latest_version_goes_to_a_new_one(server: Server, repository: Path) -> None:
    put(repository / "called" / "config.pbtxt", CALLED_CONFIG + "version_policy { all {} }")
    assert Control(server).load("called") == (200, "")
    assert borrow(server)["version"] == 1
    (repository / "called" / "2").mkdir()
    put(repository / "called" / "2" / "model.py", CALLED.replace("VERSION = 1", "VERSION = 2"))
    assert Control(server).load("called") == (200, "")
    assert calls(server, 1)[0]["version"] == 2
    assert borrow(server)["version"] == 2


def test_the_called_model_is_unloaded(server: Server) -> None:
    borrow(server)
    assert Control(server).unload("called") == (200, "")
    (rejected,) = calls(server, 1)
    assert "is not ready" in rejected["error"]
    assert Control(server).load("called") == (200, "")
    borrow(server)
