"""Runs the Python statements of CODE; what they assign to `result` is the response."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy()[0].decode()
            names = {"result": ""}
            exec(code, names)
            result = np.array([str(names["result"]).encode()], np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", result)]))
        return responses
