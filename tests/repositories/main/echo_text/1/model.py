"""For /generate: echoes the text, the shape in which each input arrived, the request parameters and
the numbers."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            numbers = pb_utils.get_input_tensor_by_name(request, "numbers")
            facts = sorted(
                f"{tensor.name()} {list(tensor.as_numpy().shape)}" for tensor in request.inputs()
            )
            facts.append(json.dumps(json.loads(request.parameters() or "{}"), sort_keys=True))
            outputs = [
                pb_utils.Tensor("text_output", text),
                pb_utils.Tensor("shapes", np.array([facts] * text.shape[0], dtype=np.object_)),
            ]
            if numbers is not None:
                outputs.append(pb_utils.Tensor("numbers_output", numbers.as_numpy()))
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
