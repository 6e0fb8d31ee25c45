"""Response parameters of each type. Servers before 2.53 do not know them: there the answer goes out
without."""

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETERS = {"text": "abc", "number": 7, "truth": True}


class TritonPythonModel:
    def execute(self, requests):
        return [self.response() for _ in requests]

    def response(self):
        outputs = [pb_utils.Tensor("OUT", np.ones(1, np.int32))]
        try:
            return pb_utils.InferenceResponse(outputs, parameters=PARAMETERS)
        except TypeError:
            return pb_utils.InferenceResponse(outputs)
