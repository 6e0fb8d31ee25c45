"""Decoupled models on a real server: batches, senders in threads, cancellation, and streams of both
protocols."""

from __future__ import annotations

import http.client
import json

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.scenarios.run import play
from tests.scenarios.scene import Scene
from tests.scenarios.suites import SUITES, read_golden
from tests.server.harness import Server

SUITE = SUITES["decoupled"]
GOLDEN = read_golden("decoupled")


@pytest.mark.parametrize("name", list(SUITE.scenarios))
def test_behaves_like_the_genuine_triton(scheduler_server: tuple[Server, str], name: str) -> None:
    assert play(*scheduler_server, SUITE, name) == GOLDEN[name]


def endless_inputs() -> list[grpc_client.InferInput]:
    inputs = [grpc_client.InferInput("X", [1, 1], "INT32")]
    inputs[0].set_data_from_numpy(np.zeros([1, 1], np.int32))
    return inputs


def test_the_model_sees_that_the_client_closed_a_stream(scene: Scene) -> None:
    numbers: list[int] = []
    with grpc_client.InferenceServerClient(scene.server.grpc) as client:
        client.start_stream(
            lambda result, error: (
                numbers.append(int(result.as_numpy("Y")[0, 0])) if error is None else None
            )
        )
        client.async_stream_infer("decoupled_endless", endless_inputs(), request_id="closed")
        while len(numbers) < 100:
            scene.wait_submitted()
        client.stop_stream(cancel_requests=True)
    ((request,),) = scene.wait_batches("decoupled_endless", 1)
    assert request["id"] == "closed"
    assert numbers == list(range(len(numbers)))


def test_the_model_sees_that_the_client_left_a_generate_stream(scene: Scene) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", scene.server.http_port, timeout=20)
    connection.request(
        "POST", "/v2/models/decoupled_endless/generate_stream", json.dumps({"X": 0, "id": "left"})
    )
    response = connection.getresponse()
    assert response.status == 200
    assert (
        response.readline()
        == b'data: {"id":"left","model_name":"decoupled_endless","model_version":"1","Y":0}\n'
    )
    connection.close()
    response.close()
    ((request,),) = scene.wait_batches("decoupled_endless", 1)
    assert request["id"] == "left"


def test_generate_requires_exactly_one_response(scene: Scene) -> None:
    status, response = scene.server.post("/v2/models/step_many/generate", {"X": 1})
    assert (status, json.loads(response)["Y"]) == (200, 0)
    status, response = scene.server.post("/v2/models/step_many/generate", {"X": 2})
    assert status == 400
    assert "exactly 1 response" in json.loads(response)["error"]
