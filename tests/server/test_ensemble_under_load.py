"""An ensemble under concurrent load: requests of one batch succeed, fail and stop on their own."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import Server, naiad
from tests.server.model_folder import Control, put

pytestmark = pytest.mark.slow

FAIL, RAISE, DIE, BY_SENDER, LARGE, CALL, CALL_ITSELF, WAIT, PARAMETERS = range(1, 10)
LARGE_COUNT = 100_000
STEP_CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU count: 1 } ]
"""
ENSEMBLE_CONFIG = """platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "step_1" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "A" } },
  { model_name: "step_2" model_version: -1
    input_map { key: "X" value: "A" } output_map { key: "Y" value: "B" } },
  { model_name: "step_3" model_version: -1
    input_map { key: "X" value: "B" } output_map { key: "Y" value: "Y" } }
] }
"""
STEP = """
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

PLUS = 1


class TritonPythonModel:
    def initialize(self, args):
        self.number = int(args["model_name"][-1])

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        y = x.copy()
        y[0, 0] += PLUS
        what = int(x[0, 2]) if x[0, 1] == self.number else 0
        if what == 1:
            error = pb_utils.TritonError("as asked", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        if what == 2:
            raise ValueError("out of order")
        if what == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == 5:
            y = np.concatenate([y, np.zeros([1, 100_000], np.int32)], axis=1)
        if what in (6, 7):
            name = "other" if what == 6 else f"step_{self.number}"
            inputs = [pb_utils.Tensor("X", np.zeros([1, 3], np.int32))]
            call = pb_utils.InferenceRequest(
                model_name=name, inputs=inputs, requested_output_names=["Y"]
            )
            response = call.exec()
            if response.has_error():
                return pb_utils.InferenceResponse(error=response.error())
        if what == 8:
            folder = Path(os.environ["MARKS"])
            (folder / "entered").write_text("a pipe")
            while not request.is_cancelled() and not (folder / "go").exists():
                time.sleep(0.001)
            if request.is_cancelled():
                (folder / "cancelled").write_text("a pipe")
        parameters = {"mark": "yes"} if what == 9 else {}
        response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)], parameters=parameters)
        if what == 4:
            sender = request.get_response_sender()
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            threading.Thread(target=sender.send, args=(response, final)).start()
            return None
        return response
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("entered", "cancelled"):
        os.mkfifo(tmp_path / name)
    folder = tmp_path / "repository"
    for name in ("step_1", "step_2", "step_3", "other"):
        (folder / name / "1").mkdir(parents=True)
        put(folder / name / "config.pbtxt", STEP_CONFIG)
        put(
            folder / name / "1" / "model.py",
            STEP.replace('int(args["model_name"][-1])', "0") if name == "other" else STEP,
        )
    (folder / "e" / "1").mkdir(parents=True)
    put(folder / "e" / "config.pbtxt", ENSEMBLE_CONFIG)
    return folder


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ["--model-control-mode=explicit", "--load-model=e", "--load-model=other"]
    with naiad([str(repository)], flags, {"MARKS": str(tmp_path)}) as one:
        yield one


def ask(server: Server, *numbers: int, model: str = "e") -> tuple[int, Any]:
    """Returns (200, output values) or (status, error message).

    `numbers` are a value, the step that does something special, and what it does.
    """
    body = {
        "inputs": [
            {"name": "X", "datatype": "INT32", "shape": [1, len(numbers)], "data": list(numbers)}
        ]
    }
    status, content = server.post(f"/v2/models/{model}/infer", body, 60)
    body = json.loads(content)
    if status == 200:
        return status, body["outputs"][0]["data"]
    return status, body["error"]


def ask_well(server: Server, value: int) -> None:
    assert ask(server, value, 0, 0) == (200, [value + 3, 0, 0])


def send_load(server: Server, ask_one: Callable[[Server, int], None] = ask_well) -> None:
    """Sends enough concurrent requests that whole batches go from step to step."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda value: ask_one(server, value), range(200)))


def counted(server: Server, model: str) -> tuple[int, int]:
    """Returns how many requests succeeded and how many failed."""
    (model_stats,) = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
    statistics = model_stats["inference_stats"]
    return int(statistics["success"]["count"]), int(statistics["fail"]["count"])


def test_each_client_gets_its_own_response_and_each_step_counts_it(server: Server) -> None:
    send_load(server)
    before = {model: counted(server, model)[0] for model in ("e", "step_1", "step_2", "step_3")}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: ask_well(server, value), range(2000)))
    for model, count in before.items():
        assert counted(server, model) == (count + 2000, 0)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_error_in_a_step_fails_only_the_request_that_caused_it(
    server: Server, step: int
) -> None:
    send_load(server)
    with ThreadPoolExecutor(8) as pool:
        plans = [(value, step, FAIL if value % 50 == 7 else 0) for value in range(400)]
        responses = list(pool.map(lambda plan: ask(server, *plan), plans))
    for (value, _, what), response in zip(plans, responses, strict=True):
        assert response == (
            (400, "in ensemble 'e', as asked") if what else (200, [value + 3, step, 0])
        )
    assert counted(server, f"step_{step}")[1] == 8
    ask_well(server, 1)


def test_exceptions_senders_large_outputs_and_parameters_in_a_step(server: Server) -> None:
    send_load(server)
    for step in (1, 2, 3):
        status, message = ask(server, 1, step, RAISE)
        assert (status, "out of order" in message) == (500, True)
        assert ask(server, 1, step, BY_SENDER) == (200, [4, step, BY_SENDER])
        status, numbers = ask(server, 1, step, LARGE)
        assert (status, len(numbers), numbers[:3]) == (200, LARGE_COUNT + 3, [4, step, LARGE])
        assert ask(server, 1, step, PARAMETERS) == (200, [4, step, PARAMETERS])
        assert ask(server, 5, 0, 0, 1, 2, 3) == (200, [8, 0, 0, 1, 2, 3])
        ask_well(server, step)
    succeeded = counted(server, "e")[0]
    assert counted(server, "step_3") == (succeeded, 1)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_worker_that_dies_in_a_step_fails_its_requests_and_restarts(
    server: Server, step: int
) -> None:
    send_load(server)
    status, message = ask(server, 1, step, DIE)
    assert (status, message) == (
        500,
        "in ensemble 'e', Failed to process the request(s) for model instance "
        f"'step_{step}_0_0', message: its worker process ended",
    )
    server.wait_for_line(f"worker of 'step_{step}_0_0' is back")
    send_load(server)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_calls_a_model_and_a_cycle_of_calls_is_an_error(server: Server, step: int) -> None:
    send_load(server)
    assert ask(server, 1, step, CALL) == (200, [4, step, CALL])
    status, message = ask(server, 1, step, CALL_ITSELF)
    assert status == 500
    assert f"'step_{step}' -> 'step_{step}' is a cycle of calls that would wait forever" in message
    ask_well(server, 1)


def test_direct_requests_to_the_steps_are_served_during_the_load(server: Server) -> None:
    send_load(server)
    with ThreadPoolExecutor(4) as pool:
        load = [pool.submit(ask_well, server, value) for value in range(900)]
        for value in range(60):
            model = f"step_{1 + value % 3}"
            assert ask(server, value, 0, 0, model=model) == (200, [value + 1, 0, 0])
        for future in load:
            future.result()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_sees_that_its_client_has_disconnected(
    server: Server, tmp_path: Path, step: int
) -> None:
    send_load(server)
    body = json.dumps(
        {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 3], "data": [1, step, WAIT]}]}
    ).encode()
    with socket.create_connection(("127.0.0.1", server.port("http"))) as client:
        client.sendall(
            b"POST /v2/models/e/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
        assert (tmp_path / "entered").read_text() == "a pipe"
    assert (tmp_path / "cancelled").read_text() == "a pipe"
    ask_well(server, 1)


def test_a_step_is_reloaded_under_load(server: Server, repository: Path) -> None:
    send_load(server)
    control = Control(server)
    with ThreadPoolExecutor(2) as pool:
        for plus in range(2, 7):
            load = [
                pool.submit(lambda: [ask(server, value, 0, 0)[0] for value in range(300)])
                for _ in range(2)
            ]
            name = f"step_{1 + plus % 3}"
            put(repository / name / "1" / "model.py", STEP.replace("PLUS = 1", f"PLUS = {plus}"))
            assert control.load(name) == (200, "")
            for future in load:
                assert set(future.result()) == {200}
            assert ask(server, 1, 0, 0, model=name) == (200, [1 + plus, 0, 0])


def test_the_server_finishes_a_running_step_before_it_stops(server: Server, tmp_path: Path) -> None:
    send_load(server)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, server, 1, 2, WAIT)
        assert (tmp_path / "entered").read_text() == "a pipe"
        server.signal(signal.SIGTERM)
        server.wait_for_line("Waiting for in-flight requests to complete")
        (tmp_path / "go").touch()
        assert held.result() == (200, [4, 2, WAIT])
    assert server.wait_exit() == 0


def test_a_step_that_returns_more_rows_does_not_overfill_the_next_batch(
    server: Server, repository: Path, tmp_path: Path
) -> None:
    """The second step fails a batch with more rows than max_batch_size."""
    control = Control(server)
    put(
        repository / "step_1" / "1" / "model.py",
        STEP.replace("y = x.copy()", "y = np.repeat(x, 4, axis=0)"),
    )
    respond_all = "return [self.respond(request) for request in requests]"
    rows = "len(pb_utils.get_input_tensor_by_name(request, 'X').as_numpy())"
    count = f"assert sum({rows} for request in requests) <= 8"
    put(
        repository / "step_2" / "1" / "model.py",
        STEP.replace(respond_all, f"{count}\n        {respond_all}"),
    )
    assert control.load("step_1") == (200, "")
    assert control.load("step_2") == (200, "")

    def ask_for_rows(server: Server, value: int) -> None:
        assert ask(server, value, 0, 0) == (200, [value + 3, 0, 0, *3 * [value, 0, 0]])

    send_load(server, ask_for_rows)
    with ThreadPoolExecutor(8) as pool:
        held = pool.submit(ask, server, 1, 1, WAIT)
        assert (tmp_path / "entered").read_text() == "a pipe"
        others = [pool.submit(ask_for_rows, server, value) for value in range(7)]
        while pending(server, "step_1") < 5:
            pass
        (tmp_path / "go").touch()
        assert held.result()[0] == 200
        for future in others:
            future.result()


def pending(server: Server, model: str) -> int:
    lines = server.get("/metrics", "metrics")[1].decode().splitlines()
    (line,) = [
        line
        for line in lines
        if line.startswith("nv_inference_pending_request_count") and f'"{model}"' in line
    ]
    return int(float(line.split()[-1]))
