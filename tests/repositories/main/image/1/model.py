"""Variable dimensions, two instances, and an output that is not contiguous in memory."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            pixels = pb_utils.get_input_tensor_by_name(request, "PIXELS").as_numpy()
            outputs = [
                pb_utils.Tensor("MEAN", pixels.mean(axis=(2, 3))),
                pb_utils.Tensor("FLIPPED", pixels[..., ::-1]),
            ]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
