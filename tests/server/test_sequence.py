"""Sequence models on a real server: the genuine Triton's transcripts, and what its Python backend
cannot show."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.scenarios.run import play
from tests.scenarios.scene import LIMIT_S, Scene
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server, naiad, process_name, process_tree

SUITE = SUITES["sequence"]
GOLDEN = read_golden("sequence")


@pytest.mark.parametrize("name", list(SUITE.scenarios))
def test_as_the_genuine_triton(scheduler_server: tuple[Server, str], name: str) -> None:
    assert play(*scheduler_server, SUITE, name) == GOLDEN[name]


# Ids.


def test_string_ids_as_a_control(scene: Scene) -> None:
    """The genuine 2.51 refuses every request to such a model."""
    model = "sequence_string_id"
    scene.ask("a1", model, "moon", "s")
    scene.ask("b1", model, "x" * 128, "s")
    assert [request["inputs"]["CORRID"][2] for request in scene.batches(model)[1]] == [
        [""],
        ["x" * 128],
    ]
    scene.ask("a2", model, "moon", "e")
    scene.ask("b2", model, "x" * 128, "e")
    assert scene.ask("c", model, 5, "s") == [
        "error",
        f"sequence batching control 'CORRID' data-type is 'UINT64', but model '{model}' expects "
        "'BYTES'",
    ]


def test_a_string_id_for_a_model_that_wants_numbers(scene: Scene) -> None:
    words = (
        "sequence batching control 'CORRID' data-type is 'BYTES', but model 'sequence_direct' "
        "expects 'UINT64'"
    )
    assert scene.ask("a", "sequence_direct", "moon", "s") == ["error", words]


def test_over_http(scene: Scene) -> None:
    def ask(**parameters: object) -> tuple[int, dict[str, object]]:
        inputs = [
            {"name": "X", "datatype": "INT32", "shape": [1, 1], "data": [4]},
            {"name": "GO", "datatype": "BYTES", "shape": [1, 1], "data": [""]},
        ]
        status, body = scene.server.post(
            "/v2/models/sequence_plain/infer", {"inputs": inputs, "parameters": parameters}
        )
        return status, json.loads(body)

    assert ask(sequence_id="over http", sequence_start=True)[0] == 200
    assert ask(sequence_id="over http")[1]["outputs"] == [
        {"name": "Y", "datatype": "INT32", "shape": [1, 1], "data": [5]}
    ]
    assert ask(sequence_id="over http", sequence_end=True)[0] == 200
    status, answer = ask(sequence_id="over http")
    assert status == 400
    assert "must specify the START flag" in str(answer["error"])


# Implicit state.


def test_state_from_zeros_from_a_file_and_of_growing_size(scene: Scene) -> None:
    model = "sequence_state"
    answers = [
        scene.ask(f"a{x}", model, 1, flags, x=x, go=None)[0]
        for x, flags in ((5, "s"), (6, ""), (7, ""))
    ]
    assert answers == [
        {"Y": [0], "SUM_OUT": [105, 205]},
        {"Y": [5], "SUM_OUT": [111, 211]},
        {"Y": [6], "SUM_OUT": [118, 218]},
    ]
    given = [batch[0]["inputs"] for batch in scene.batches(model)]
    assert [inputs["ALL_IN"][1:] for inputs in given] == [
        [[1, 1], [0]],
        [[1, 2], [0, 5]],
        [[1, 3], [0, 5, 6]],
    ]
    assert [inputs["TEXT_IN"][2] for inputs in given] == [[""], ["5."], ["5.6."]]
    assert scene.ask("again", model, 1, "se", x=1, go=None) == [{"Y": [0], "SUM_OUT": [101, 201]}]


def test_two_sequences_have_a_state_each(scene: Scene) -> None:
    model = "sequence_state"
    scene.ask("a1", model, 1, "s", x=5, go=None)
    scene.ask("b1", model, 2, "s", x=50, go=None)
    assert scene.ask("a2", model, 1, "e", x=0, go=None)[0]["Y"] == [5]
    assert scene.ask("b2", model, 2, "e", x=0, go=None)[0]["Y"] == [50]


def test_a_state_that_is_an_output_may_be_asked_for_alone_and_a_hidden_one_not_at_all(
    scene: Scene,
) -> None:
    model = "sequence_state"
    assert scene.ask("a", model, 3, "s", x=5, go=None, outputs=["SUM_OUT"]) == [
        {"SUM_OUT": [105, 205]}
    ]
    assert scene.ask("b", model, 3, "e", x=1, go=None, outputs=["Y"]) == [{"Y": [5]}]
    error, words = scene.ask("c", model, 3, "s", x=1, go=None, outputs=["LAST_OUT"])
    assert (error, words) == (
        "error",
        f"unexpected inference output 'LAST_OUT' for model '{model}'",
    )


# What differs from the genuine one on purpose.


def test_a_sequence_is_not_idle_while_it_executes(scene: Scene) -> None:
    """Triton counts from the arrival of the last request, so a model slower than the idle time
    loses its sequences."""
    model = "sequence_one_slot"
    gate = scene.gate()
    scene.send("a1", model, 1, "s", go=gate)
    gate.wait_entered()
    # A sequence of another model that is idle for as long: when it is forgotten, so would be this
    # one.
    other = "sequence_one_candidate"
    scene.ask("x1", other, 1, "s", on="other")
    scene.send("y1", other, 2, "se", on="other")
    assert scene.response("y1", on="other") == [{"Y": [1]}]
    scene.send("a2", model, 1, "e")
    scene.wait_submitted()
    gate.open()
    assert scene.response("a1") == [{"Y": [1]}]
    assert scene.response("a2") == [{"Y": [1]}]


def test_cancelling_a_waiting_request_takes_the_rest_of_its_sequence_along(scene: Scene) -> None:
    model = "sequence_one_slot"
    gate = scene.gate()
    scene.send("a1", model, 1, "s", go=gate)
    gate.wait_entered()
    inputs = [
        grpc_client.InferInput("X", [1, 1], "INT32"),
        grpc_client.InferInput("GO", [1, 1], "BYTES"),
    ]
    inputs[0].set_data_from_numpy(np.zeros([1, 1], np.int32))
    inputs[1].set_data_from_numpy(np.array([[b""]], np.object_))
    with grpc_client.InferenceServerClient(scene.server.grpc) as client:
        doomed = client.async_infer(
            model, inputs, lambda result, error: None, sequence_id=1, request_id="doomed"
        )
        scene.wait_pending(model, 1)
        scene.send("a3", model, 1, on="after")
        scene.wait_submitted(on="after")
        doomed.cancel()
        assert scene.response("a3", on="after")[0] == "error"
        gate.open()
        assert scene.response("a1") == [{"Y": [1]}]
        assert "must specify the START flag" in scene.ask("a4", model, 1, on="after")[1]
    assert [[request["id"] for request in batch] for batch in scene.batches(model)] == [["a1"]]


# Life and death.


def test_the_death_of_a_worker_ends_its_sequences_and_the_model_comes_back(
    repositories: object, tmp_path: object
) -> None:
    with naiad(
        [f"{repositories}/schedulers"],
        ["--model-control-mode=explicit", "--load-model=sequence_direct", "--load-model=probe"],
        {"RECORD_DIR": str(tmp_path)},
    ) as server:
        scene = Scene(server, str(tmp_path))
        model = "sequence_direct"
        scene.ask("a1", model, 1, "s")
        gate = scene.gate()
        scene.send("a2", model, 1, go=gate)
        gate.wait_entered()
        scene.send("a3", model, 1)
        scene.wait_submitted()
        (worker,) = [
            pid for pid in process_tree(server.pid) if process_name(pid) == model[-13:] + "_0"
        ]
        os.kill(worker, signal.SIGKILL)
        assert "its worker process ended" in scene.response("a2")[1]
        assert "start the sequence again" in scene.response("a3")[1]
        server.wait_for_line(r"worker of 'sequence_direct_0' is back")
        assert "must specify the START flag" in scene.ask("a4", model, 1)[1]
        assert scene.ask("b1", model, 1, "se") == [{"Y": [1]}]
        scene.close()


def test_a_sequence_that_has_begun_finishes_while_the_server_shuts_down(
    repositories: object, tmp_path: object
) -> None:
    with naiad(
        [f"{repositories}/schedulers"],
        ["--model-control-mode=explicit", "--load-model=sequence_direct"],
        {"RECORD_DIR": str(tmp_path)},
    ) as server:
        scene = Scene(server, str(tmp_path))
        scene.ask("a1", "sequence_direct", 1, "s")
        server.signal(signal.SIGTERM)
        server.wait_for_line(r"Timeout \d+: Found", LIMIT_S)  # new requests are refused now
        assert scene.ask("b1", "sequence_direct", 2, "s") == ["error", "Server exiting"]
        assert scene.ask("a2", "sequence_direct", 1) == [{"Y": [1]}]
        assert scene.ask("a3", "sequence_direct", 1, "e") == [{"Y": [1]}]
        scene.close()
        assert server.wait_exit() == 0
