"""Its is_ready hook says no while the file `unready` lies in the folder that $TEST_STATE
names."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ones(1, np.int32))])
            for _ in requests
        ]

    def is_ready(self):
        return not os.path.exists(os.path.join(os.environ["TEST_STATE"], "unready"))
