"""Decoupled: sends two responses, then ends its process in the middle of the stream."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(2):
                sender.send(
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", np.array([number], np.int32))]
                    )
                )
            os._exit(7)
