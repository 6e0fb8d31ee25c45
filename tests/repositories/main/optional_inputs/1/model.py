"""RESULT = (BASE + PLUS) * TIMES, each of the last two only when the request brings it."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            result = pb_utils.get_input_tensor_by_name(request, "BASE").as_numpy()
            plus = pb_utils.get_input_tensor_by_name(request, "PLUS")
            times = pb_utils.get_input_tensor_by_name(request, "TIMES")
            if plus is not None:
                result = result + plus.as_numpy()
            if times is not None:
                result = result * times.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("RESULT", result)]))
        return responses
