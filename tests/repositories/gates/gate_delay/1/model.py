"""A model that is as slow as a test wants: GO names a FIFO, whose writer must open and close it
before execute goes on.

Opening a FIFO for reading waits for its writer, so the test knows that execute has begun when its
own open returns, and ends it by closing. An empty GO does not wait. TOGETHER tells how many
requests were executed together.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            paths = pb_utils.get_input_tensor_by_name(request, "GO").as_numpy()
            for path in paths.ravel():
                if path:
                    with open(path, "rb") as fifo:
                        fifo.read()
            together = np.full((len(paths), 1), len(requests), np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOGETHER", together)]))
        return responses
