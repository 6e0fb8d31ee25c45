"""A worker that sends what it must not send costs its own requests, and no frontend process: the
server process passes outputs on to frontends without a look at them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.server.harness import Server, frontends, naiad
from tests.server.model_folder import put, write_model
from tests.server.test_frontends import Client, Load, success_count

CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "KIND" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "WORD" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
"""
MODEL = '''
import msgspec
import numpy as np
import triton_python_backend_utils as pb_utils
from naiad.ipc.framing import Link

KINDS = {
    1: 5,
    2: {"WORD": 1},
    3: [["WORD", "BYTES", [1, 1]]],
    4: [["WORD", 7, [1, 1], b""]],
    5: msgspec.Raw(b"\\x91\\x94\\xa4\\xff\\xff\\xff\\xff\\xa5BYTES\\x91\\x01\\xc4\\x00"),
    6: msgspec.Raw(b"\\x91" * 5000 + b"\\x90"),
    7: [["WORD", "BYTES", [1, 1], [1, 0, 5, True]]],
    8: [["WORD", "BYTES", [1, 1], b"abc"]],
    9: [["WORD", "INT32", [7], b"abc"]],
}
pack = Link.pack


def pack_wrong(link, message, buffer):
    """The output of a request names what is sent in its place."""
    for response in getattr(message, "responses", ()):
        if response is not None and response.outputs:
            kind = int(bytes(response.outputs[0].data[4:]))
            response.outputs = KINDS.get(kind, response.outputs)
    return pack(link, message, buffer)


Link.pack = pack_wrong


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            kind = pb_utils.get_input_tensor_by_name(request, "KIND").as_numpy()
            word = pb_utils.Tensor("WORD", kind.astype(str).astype(np.object_))
            responses.append(pb_utils.InferenceResponse([word]))
        return responses
'''
ENDED = "message: its worker process ended"
NO_TENSORS = "the worker of the model has sent outputs that are not tensors"
NO_REFERENCE = "the worker of the model has sent a wrong reference"
NUM_KINDS = 9


@pytest.fixture(scope="module", params=[1, 2])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """Serves a model for each kind of bad outputs: a worker that dies often is not restarted
    soon."""
    folder = tmp_path_factory.mktemp("models")
    for kind in range(NUM_KINDS + 1):
        (folder / f"wrong{kind}" / "1").mkdir(parents=True)
        put(folder / f"wrong{kind}" / "config.pbtxt", CONFIG)
        put(folder / f"wrong{kind}" / "1" / "model.py", MODEL)
    write_model(folder, "word", "first")
    with naiad([str(folder)], [f"--frontend-processes={request.param}"]) as one:
        yield one


def send(client: Client, model: str, kind: int) -> tuple[int, str]:
    """The status, and the output or the end of the error."""
    tensor = {"name": "KIND", "datatype": "INT32", "shape": [1, 1], "data": [kind]}
    body = json.dumps({"inputs": [tensor]}).encode()
    status, response = client.request("POST", f"/v2/models/{model}/infer", body)
    if status == 200:
        return status, response["outputs"][0]["data"][0]
    return status, response["error"].partition(", ")[2] or response["error"]


@pytest.mark.parametrize("kind", range(1, NUM_KINDS + 1))
def test_bad_outputs_fail_their_own_request(server: Server, kind: int) -> None:
    processes, before = frontends(server), success_count(server)
    client = Client(server)
    with Load(server, 4) as load:
        load.wait_for(20)
        assert send(client, f"wrong{kind}", 0) == (200, "0")
        status, error = send(client, f"wrong{kind}", kind)
        load.wait_for(100)
    client.close()
    assert status == 500
    assert error in (ENDED, NO_TENSORS, NO_REFERENCE, "internal error")
    assert (load.num_broken, load.errors) == (0, {})
    assert success_count(server) == before + load.num_ok
    assert frontends(server) == processes


def test_a_worker_that_goes_on_sending_bad_outputs_is_ended(server: Server) -> None:
    """A frontend that finds bad outputs tells the server, which looks at the next ones."""
    client = Client(server)
    assert send(client, "wrong0", 1) in ((500, ENDED), (500, NO_TENSORS))
    assert send(client, "wrong0", 1) == (500, ENDED)
    server.wait_for_line("worker of 'wrong0_0' is back")
    assert send(client, "wrong0", 0) == (200, "0")
    client.close()
