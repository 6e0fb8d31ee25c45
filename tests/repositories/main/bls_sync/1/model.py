"""Business logic scripting: two blocking calls to add_sub, the second with the first one's
result."""

import triton_python_backend_utils as pb_utils


def add(left, right):
    request = pb_utils.InferenceRequest(
        model_name="add_sub",
        requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", left), pb_utils.Tensor("INPUT1", right)],
    )
    response = request.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", add(add(x, x), x))]))
        return responses
