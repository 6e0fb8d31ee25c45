"""A Python model's `is_ready` on a real server: when it runs, and who waits for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as grpc_client

from tests.server.gates import HttpCall, eventually, in_thread
from tests.server.harness import Server, naiad
from tests.server.model_folder import ANY, put, write_model

MODEL = """
import asyncio
import os
import numpy as np
import triton_python_backend_utils as pb_utils

STATE = {state!r}


def pass_gate(name):
    path = os.path.join(STATE, name)
    if os.path.exists(path):
        open(path).read()


class TritonPythonModel:
    def is_ready(self):
        with open(os.path.join(STATE, "runs"), "a") as runs:
            runs.write("run\\n")
        pass_gate("ready gate")
        return not os.path.exists(os.path.join(STATE, "unready"))

    def execute(self, requests):
        pass_gate("execute gate")
        output = pb_utils.Tensor("WORD", np.array(["x"], dtype=np.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""
ASYNC_MODEL = MODEL.replace("    def ", "    async def ").replace(
    "        pass_gate(", "        await asyncio.to_thread(pass_gate, "
)
CALLER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        word = str(pb_utils.is_model_ready("m"))
        output = pb_utils.Tensor("WORD", np.array([word], dtype=np.object_))
        return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


class Rig:
    def __init__(self, server: Server, state: Path) -> None:
        self.server = server
        self.state = state

    def num_runs(self) -> int:
        path = self.state / "runs"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def is_ready(self) -> bool:
        return self.server.is_ready("/v2/models/m/ready")

    def infer(self) -> HttpCall:
        return HttpCall(self.server, "/v2/models/m/infer", ANY)

    def close_gate(self, name: str) -> Path:
        path = self.state / name
        os.mkfifo(path)
        return path


def open_gate(path: Path) -> None:
    """Lets the model pass that waits there, and those that come later."""
    with path.open("w"):
        path.unlink()


@pytest.fixture(scope="module", params=[MODEL, ASYNC_MODEL], ids=["sync", "async"])
def module_rig(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("ready")
    repository, state = folder / "models", folder / "state"
    state.mkdir()
    write_model(repository, "m")
    put(repository / "m" / "1" / "model.py", request.param.format(state=str(state)))
    write_model(repository, "caller")
    put(repository / "caller" / "1" / "model.py", CALLER)
    with naiad([str(repository)]) as server:
        yield Rig(server, state)


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    (module_rig.state / "runs").unlink(missing_ok=True)
    return module_rig


def test_every_question_runs_the_hook_and_nothing_else_does(rig: Rig) -> None:
    with grpc_client.InferenceServerClient(rig.server.grpc) as client:
        assert rig.num_runs() == 0
        assert rig.is_ready()
        assert client.is_model_ready("m")
        assert rig.num_runs() == 2
        assert rig.server.is_ready()
        assert client.is_server_ready()
        assert rig.num_runs() == 4
        for path in ("/v2/health/live", "/v2/models/m", "/v2/models/m/config", "/v2/models/stats"):
            assert rig.server.get(path)[0] == 200
        assert rig.infer().response()[0] == 200
        assert rig.num_runs() == 4


def test_the_result_counts_for_the_model_and_the_server(rig: Rig) -> None:
    (rig.state / "unready").touch()
    try:
        assert not rig.is_ready()
        assert not rig.server.is_ready()
        with grpc_client.InferenceServerClient(rig.server.grpc) as client:
            assert not client.is_model_ready("m")
            assert not client.is_server_ready()
        assert rig.infer().response()[0] == 200
    finally:
        (rig.state / "unready").unlink()
    assert rig.is_ready()


def test_models_get_the_result_too(rig: Rig) -> None:
    def ask() -> object:
        call = HttpCall(rig.server, "/v2/models/caller/infer", ANY)
        return call.response()[2]["outputs"][0]["data"]

    assert ask() == ["True"]
    (rig.state / "unready").touch()
    try:
        assert ask() == ["False"]
    finally:
        (rig.state / "unready").unlink()


def test_whoever_asks_during_a_run_waits_for_it(rig: Rig) -> None:
    gate = rig.close_gate("ready gate")
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(rig.is_ready) for _ in range(8)]
        eventually(lambda: rig.num_runs() == 1, "the hook runs")
        open_gate(gate)
        assert [future.result(60) for future in asking] == [True] * 8
    assert rig.num_runs() <= 2, "those that came too late share one more run"


def test_a_hook_that_hangs_means_not_ready_after_five_seconds(rig: Rig) -> None:
    gate = rig.close_gate("ready gate")
    asking = in_thread(rig.is_ready)
    assert rig.infer().response()[0] == 200
    assert asking.result(60) is False
    assert rig.num_runs() == 1
    late = in_thread(rig.is_ready)
    open_gate(gate)
    assert late.result(60) is True


def test_the_hook_runs_while_a_batch_executes(rig: Rig) -> None:
    gate = rig.close_gate("execute gate")
    call = rig.infer()
    with gate.open("w"):  # the model is at the gate
        assert rig.is_ready()
        assert not call.has_response()
        gate.unlink()
    assert call.response()[0] == 200
