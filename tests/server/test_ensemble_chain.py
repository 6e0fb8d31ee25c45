"""Batches of an ensemble that go from worker to worker: nothing but their speed may tell them from those that go through the server."""

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

from tests.server.harness import Server, naiad, process_name, process_tree
from tests.server.model_folder import Control, put

OVER = "batches go from worker to worker: step_1_0_0 -> step_2_0_0 -> step_3_0_0: no more"
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
  { model_name: "step_1" model_version: -1 input_map { key: "X" value: "X" } output_map { key: "Y" value: "A" } },
  { model_name: "step_2" model_version: -1 input_map { key: "X" value: "A" } output_map { key: "Y" value: "B" } },
  { model_name: "step_3" model_version: -1 input_map { key: "X" value: "B" } output_map { key: "Y" value: "Y" } }
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
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        y = x.copy()
        y[0, 0] += PLUS
        what = int(x[0, 2]) if x[0, 1] == self.number else 0
        if what == 1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("as asked", pb_utils.TritonError.INVALID_ARG))
        if what == 2:
            raise ValueError("out of order")
        if what == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if what == 5:
            y = np.concatenate([y, np.zeros([1, 100_000], np.int32)], axis=1)
        if what in (6, 7):
            name = "other" if what == 6 else f"step_{self.number}"
            inputs = [pb_utils.Tensor("X", np.zeros([1, 3], np.int32))]
            response = pb_utils.InferenceRequest(model_name=name, inputs=inputs, requested_output_names=["Y"]).exec()
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
            threading.Thread(target=sender.send, args=(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)).start()
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
        put(folder / name / "1" / "model.py", STEP.replace('int(args["model_name"][-1])', "0") if name == "other" else STEP)
    (folder / "e" / "1").mkdir(parents=True)
    put(folder / "e" / "config.pbtxt", ENSEMBLE_CONFIG)
    return folder


@pytest.fixture
def server(repository: Path, tmp_path: Path) -> Iterator[Server]:
    # Without busy polling, which is for a client that is alone: so are those of many tests here.
    flags = ["--model-control-mode=explicit", "--load-model=e", "--load-model=other", "--log-verbose=1", "--busy-poll-us=0"]
    with naiad([str(repository)], flags, {"MARKS": str(tmp_path)}) as one:
        yield one


def ask(server: Server, *numbers: int, model: str = "e") -> tuple[int, Any]:
    """(200, the numbers of the answer) or (status, its words). Numbers: a value, the step that does something, what it does."""
    body = {"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, len(numbers)], "data": list(numbers)}]}
    status, content = server.post(f"/v2/models/{model}/infer", body, 60)
    answer = json.loads(content)
    return (status, answer["outputs"][0]["data"]) if status == 200 else (status, answer["error"])


def ask_well(server: Server, value: int) -> None:
    assert ask(server, value, 0, 0) == (200, [value + 3, 0, 0])


def form(server: Server, since: int = 0, ask_one: Callable[[Server, int], None] = ask_well) -> None:
    """Until batches go from worker to worker."""

    def has_formed() -> bool:
        found = [line.rstrip().rstrip('"') for line in server.lines[since:]]
        return any(line.endswith("step_1_0_0 -> step_2_0_0 -> step_3_0_0") for line in found)

    num_rounds = 0
    with ThreadPoolExecutor(4) as pool:  # a client that is alone does not make one
        while not has_formed():
            list(pool.map(lambda value: ask_one(server, value), range(40)))
            num_rounds += 1
            assert num_rounds < 500
    for value in range(20):
        ask_one(server, value)


def counted(server: Server, model: str) -> tuple[int, int]:
    """(answered, failed)"""
    (found,) = json.loads(server.get(f"/v2/models/{model}/stats")[1])["model_stats"]
    return int(found["inference_stats"]["success"]["count"]), int(found["inference_stats"]["fail"]["count"])


def worker(server: Server, name: str) -> int:
    (pid,) = [pid for pid in process_tree(server.pid) if process_name(pid) == name]
    return pid


def test_many_clients_get_their_own_answers_and_each_step_counts_them(server: Server) -> None:
    form(server)
    before = {model: counted(server, model)[0] for model in ("e", "step_1", "step_2", "step_3")}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: ask_well(server, value), range(2000)))
    for model, count in before.items():
        assert counted(server, model) == (count + 2000, 0)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_error_of_a_step_is_its_requests_alone(server: Server, step: int) -> None:
    form(server)
    with ThreadPoolExecutor(8) as pool:
        plans = [(value, step, FAIL if value % 50 == 7 else 0) for value in range(400)]
        found = list(pool.map(lambda plan: ask(server, *plan), plans))
    for (value, _, what), answer in zip(plans, found, strict=True):
        assert answer == ((400, "in ensemble 'e', as asked") if what else (200, [value + 3, step, 0]))
    assert counted(server, f"step_{step}")[1] == 8
    ask_well(server, 1)


def test_what_is_out_of_the_ordinary_goes_the_usual_way(server: Server) -> None:
    form(server)
    for step in (1, 2, 3):
        status, words = ask(server, 1, step, RAISE)
        assert (status, "out of order" in words) == (500, True)
        assert ask(server, 1, step, BY_SENDER) == (200, [4, step, BY_SENDER])
        status, numbers = ask(server, 1, step, LARGE)
        assert (status, len(numbers), numbers[:3]) == (200, LARGE_COUNT + 3, [4, step, LARGE])
        assert ask(server, 1, step, PARAMETERS) == (200, [4, step, PARAMETERS])
        assert ask(server, 5, 0, 0, 1, 2, 3) == (200, [8, 0, 0, 1, 2, 3])
        ask_well(server, step)
    succeeded = counted(server, "e")[0]
    assert counted(server, "step_3") == (succeeded, 1)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_worker_that_dies_fails_what_is_under_way_and_comes_back(server: Server, step: int) -> None:
    form(server)
    status, words = ask(server, 1, step, DIE)
    assert (status, words) == (
        500,
        f"in ensemble 'e', Failed to process the request(s) for model instance 'step_{step}_0_0', message: its worker process ended",
    )
    server.wait_for_line(f"worker of 'step_{step}_0_0' is back")
    form(server, since=len(server.lines))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_may_call_a_model_and_a_circle_is_named(server: Server, step: int) -> None:
    form(server)
    assert ask(server, 1, step, CALL) == (200, [4, step, CALL])
    status, words = ask(server, 1, step, CALL_ITSELF)
    assert status == 500
    assert f"'step_{step}' -> 'step_{step}' is a circle of calls that would wait for ever" in words
    ask_well(server, 1)


def test_others_are_served_meanwhile(server: Server) -> None:
    form(server)
    with ThreadPoolExecutor(4) as pool:
        load = [pool.submit(lambda: [ask_well(server, value) for value in range(300)]) for _ in range(3)]
        for value in range(60):
            model = f"step_{1 + value % 3}"
            assert ask(server, value, 0, 0, model=model) == (200, [value + 1, 0, 0])
        for future in load:
            future.result()
    server.wait_for_line(OVER)


def test_the_first_step_does_not_wait_for_one_that_has_stopped(server: Server, tmp_path: Path) -> None:
    form(server)
    pid = worker(server, "step_2_0_0")
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(4) as pool:
            held = [pool.submit(ask, server, value, 0, 0) for value in range(4)]
            server.wait_for_line(OVER)
            assert ask(server, 1, 0, 0, model="step_1") == (200, [2, 0, 0])
            os.kill(pid, signal.SIGCONT)
            assert [future.result() for future in held] == [(200, [value + 3, 0, 0]) for value in range(4)]
    finally:
        os.kill(pid, signal.SIGCONT)
    ask_well(server, 1)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_client_that_goes_away_is_seen_by_the_step_that_works_for_it(server: Server, tmp_path: Path, step: int) -> None:
    form(server)
    body = json.dumps({"inputs": [{"name": "X", "datatype": "INT32", "shape": [1, 3], "data": [1, step, WAIT]}]}).encode()
    with socket.create_connection(("127.0.0.1", server.port("http"))) as client:
        client.sendall(b"POST /v2/models/e/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert (tmp_path / "entered").read_text() == "a pipe"
    assert (tmp_path / "cancelled").read_text() == "a pipe"
    ask_well(server, 1)


def test_a_step_is_reloaded_under_load(server: Server, repository: Path) -> None:
    form(server)
    control = Control(server)
    with ThreadPoolExecutor(2) as pool:
        for plus in range(2, 7):
            load = [pool.submit(lambda: [ask(server, value, 0, 0)[0] for value in range(300)]) for _ in range(2)]
            name = f"step_{1 + plus % 3}"
            put(repository / name / "1" / "model.py", STEP.replace("PLUS = 1", f"PLUS = {plus}"))
            assert control.load(name) == (200, "")
            for future in load:
                assert set(future.result()) == {200}
            assert ask(server, 1, 0, 0, model=name) == (200, [1 + plus, 0, 0])


def test_the_server_stops_while_batches_go_from_worker_to_worker(server: Server, tmp_path: Path) -> None:
    form(server)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(ask, server, 1, 2, WAIT)
        assert (tmp_path / "entered").read_text() == "a pipe"
        server.signal(signal.SIGTERM)
        server.wait_for_line("Waiting for in-flight requests to complete")
        (tmp_path / "go").touch()
        assert held.result() == (200, [4, 2, WAIT])
    assert server.wait_exit() == 0


def test_a_step_that_gives_more_rows_than_it_takes_does_not_overfill_the_next(server: Server, repository: Path, tmp_path: Path) -> None:
    """The second step counts the rows of its batches, and fails one that has more than it may have."""
    control = Control(server)
    put(repository / "step_1" / "1" / "model.py", STEP.replace("y = x.copy()", "y = np.repeat(x, 4, axis=0)"))
    answer_all = "return [self.answer(request) for request in requests]"
    count = "assert sum(len(pb_utils.get_input_tensor_by_name(request, 'X').as_numpy()) for request in requests) <= 8"
    put(repository / "step_2" / "1" / "model.py", STEP.replace(answer_all, f"{count}\n        {answer_all}"))
    assert control.load("step_1") == (200, "")
    assert control.load("step_2") == (200, "")

    def ask_for_rows(server: Server, value: int) -> None:
        assert ask(server, value, 0, 0) == (200, [value + 3, 0, 0, *3 * [value, 0, 0]])

    form(server, len(server.lines), ask_for_rows)
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
    (line,) = [line for line in lines if line.startswith("nv_inference_pending_request_count") and f'"{model}"' in line]
    return int(float(line.split()[-1]))
