"""Scores with labels, integers without, and a string output, on which classification is an
error."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "FEATURES").as_numpy()
            best = np.array([[str(index)] for index in scores.argmax(axis=1)], dtype=np.object_)
            outputs = [
                pb_utils.Tensor("SCORES", scores / 2),
                pb_utils.Tensor("RANKS", (scores * 10).astype(np.int64)),
                pb_utils.Tensor("BEST", best),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
