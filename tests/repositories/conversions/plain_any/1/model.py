"""Y is X; SEEN is the shape in which the model saw X."""

import numpy as np
import triton_python_backend_utils as pb_utils

HAS_BATCH = False


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        seen = np.full([len(x), 1] if HAS_BATCH else [1], str(list(x.shape)), dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", x), pb_utils.Tensor("SEEN", seen)])
