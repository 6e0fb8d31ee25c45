"""A model gets more requests than it can serve: those that are admitted wait briefly, and the
others are refused at once."""

from __future__ import annotations

import contextlib
import re
import threading
from http.client import HTTPConnection
from pathlib import Path

from tests.server.gates import eventually, pending
from tests.server.harness import naiad

CONFIG = """backend: "python"
input [ { name: "IN" data_type: TYPE_UINT8 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ 1 ] } ]
"""
MODEL = """
import threading
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        threading.Event().wait(0.01)
        output = pb_utils.get_input_tensor_by_name(requests[0], "IN")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", output.as_numpy())])]
"""
BODY = b'{"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [1], "data": [1]}]}'


def test_an_overloaded_model_refuses_with_the_expected_wait(tmp_path: Path) -> None:
    (tmp_path / "slow" / "1").mkdir(parents=True)
    (tmp_path / "slow" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "slow" / "1" / "model.py").write_text(MODEL)
    refusals: list[tuple[str | None, bytes]] = []
    statuses: set[int] = set()
    is_over = threading.Event()

    with naiad([str(tmp_path)], ["--max-queue-wait-secs=0.2"]) as server:

        def call() -> None:
            with contextlib.closing(HTTPConnection("127.0.0.1", server.http_port)) as connection:
                while not is_over.is_set():
                    connection.request("POST", "/v2/models/slow/infer", BODY)
                    response = connection.getresponse()
                    body = response.read()
                    if response.status == 503:
                        refusals.append((response.headers["Retry-After"], body))
                    else:
                        statuses.add(response.status)

        clients = [threading.Thread(target=call) for _ in range(60)]
        for client in clients:
            client.start()
        try:
            eventually(lambda: len(refusals) > 100, "requests are refused")
            eventually(lambda: pending(server, "slow") <= 2, "few requests wait")
        finally:
            is_over.set()
            for client in clients:
                client.join()
        assert statuses == {200}
        for retry_after, body in refusals:
            found = re.search(rb"the model is overloaded: .* takes about ([\d.]+) s", body)
            assert found is not None, body
            # The text has two digits, and a whole second is the least that the header can say.
            wait_s = max(float(found[1]), 1.0)
            assert wait_s - 0.06 <= float(retry_after or "0") <= wait_s + 1.06
        assert server.post("/v2/models/slow/infer", BODY)[0] == 200
