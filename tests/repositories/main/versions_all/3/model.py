"""Answers with the version that the server told it it is."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = np.array([int(args["model_version"])], np.int32)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", self.version)]) for _ in requests
        ]
