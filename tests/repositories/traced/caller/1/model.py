"""Business logic scripting: calls `sums` twice, once within its own trace and once without."""

import triton_python_backend_utils as pb_utils


def add(left, right, **more):
    request = pb_utils.InferenceRequest(
        model_name="sums",
        requested_output_names=["OUTPUT0"],
        inputs=[pb_utils.Tensor("INPUT0", left), pb_utils.Tensor("INPUT1", right)],
        request_id="inner",
        **more,
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
            once = add(x, x, trace=request.trace())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", add(once, x))]))
        return responses
