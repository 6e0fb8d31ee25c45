"""Behaves well: whatever happens to others must not touch it."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))])
            for _ in requests
        ]
