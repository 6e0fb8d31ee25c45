"""Decoupled numbers without end, until the client has gone. The FIFO that BEGUN names is open as
long as it works."""

import itertools
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            path = pb_utils.get_input_tensor_by_name(request, "BEGUN").as_numpy()[0]
            with open(path, "wb", buffering=0) as fifo:
                fifo.write(b"begun")
                for number in itertools.count():
                    if sender.is_cancelled():
                        break
                    sender.send(
                        pb_utils.InferenceResponse(
                            [pb_utils.Tensor("NUMBER", np.array([number], np.int32))]
                        )
                    )
                    time.sleep(0.001)
                fifo.write(b" cancelled")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
