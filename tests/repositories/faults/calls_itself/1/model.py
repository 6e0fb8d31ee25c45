"""BLS to itself with one instance: an error within the call's deadline, never a hang."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for _ in requests:
            inner = pb_utils.InferenceRequest(
                model_name="calls_itself",
                requested_output_names=["OUT"],
                inputs=[pb_utils.Tensor("ANY", np.ones(1, np.int32))],
            ).exec()
            outputs = [pb_utils.Tensor("OUT", np.ones(1, np.int32))]
            responses.append(inner if inner.has_error() else pb_utils.InferenceResponse(outputs))
        return responses
