"""Answers with what the model sees of the trace: the W3C context as JSON, or `none`."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            context = request.trace().get_context()
            text = np.array(["none" if context is None else context], dtype=np.object_)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("CONTEXT", text)]))
        return responses
