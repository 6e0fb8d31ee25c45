"""Models for tests of the network: an endless stream, and large responses."""

from __future__ import annotations

from pathlib import Path

TICKER = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.tick, args=(request,), daemon=True).start()

    def tick(self, request):
        count, pause_ms, size = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0])
            for name in ("COUNT", "PAUSE_MS", "SIZE")
        )
        sender = request.get_response_sender()
        text = np.array([b"x" * size], object)
        for index in range(count):
            if sender.is_cancelled():
                pb_utils.Logger.log_info(f"cancelled: {request.request_id()}")
                break
            number = pb_utils.Tensor("INDEX", np.array([index], np.int32))
            sender.send(pb_utils.InferenceResponse([number, pb_utils.Tensor("TEXT", text)]))
            if pause_ms:
                time.sleep(pause_ms / 1000)
        sender.send(flags=FINAL)
"""
TICKER_CONFIG = """backend: "python"
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "PAUSE_MS" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "INDEX" data_type: TYPE_INT32 dims: [ 1 ] },
         { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
BIG = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            size = int(pb_utils.get_input_tensor_by_name(request, "SIZE").as_numpy()[0])
            values = np.arange(size, dtype=np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("VALUES", values)]))
        return responses
"""
BIG_CONFIG = """backend: "python"
input [ { name: "SIZE" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "VALUES" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


def write_models(folder: Path) -> Path:
    for name, code, config in (("ticker", TICKER, TICKER_CONFIG), ("big", BIG, BIG_CONFIG)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(code)
        (folder / name / "config.pbtxt").write_text(config)
    return folder
