"""Adds up the numbers of a sequence."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.total = 0

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        value, start = (
            pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]
            for name in ("IN", "START")
        )
        self.total = int(value) if start else self.total + int(value)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", np.array([self.total % 2**31], np.int32))]
        )
