"""Decoupled, and drops its sender without the final flag: a mistake that must not keep a client for
ever."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            request.get_response_sender().send(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(1, np.int32))])
            )
