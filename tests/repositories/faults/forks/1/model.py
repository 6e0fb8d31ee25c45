"""Forks at each request, as subprocess-happy models do; the child leaves at once and is waited
for."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))])
            for _ in requests
        ]
