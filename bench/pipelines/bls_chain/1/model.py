"""Calls the three steps one after the other, each with a blocking call."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "X")
        for step in ("step_1", "step_2", "step_3"):
            inputs = [pb_utils.Tensor("X", tensor.as_numpy())]
            response = pb_utils.InferenceRequest(
                model_name=step, inputs=inputs, requested_output_names=["Y"]
            ).exec()
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            tensor = pb_utils.get_output_tensor_by_name(response, "Y")
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor.as_numpy())])
