"""Sleeps 2 ms for a batch and 6 ms for every twentieth, so that all load generators should see the
same latencies."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.number = 0

    def execute(self, requests):
        self.number += 1
        time.sleep(0.006 if self.number % 20 == 0 else 0.002)
        arrays = [
            pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests
        ]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
