"""Collects all responses of the decoupled model `repeat` into one answer. An error among them
becomes -1."""

import numpy as np
import triton_python_backend_utils as pb_utils


def indices(count, parameters):
    request = pb_utils.InferenceRequest(
        model_name="repeat",
        requested_output_names=["INDEX"],
        inputs=[pb_utils.Tensor("COUNT", count)],
        parameters=parameters,
    )
    for response in request.exec(decoupled=True):
        if response.has_error():
            yield -1
        else:
            for tensor in response.output_tensors():
                yield int(tensor.as_numpy()[0])


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()
            found = np.array(list(indices(count, {"fail_at": 2})), np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("INDICES", found)]))
        return responses
