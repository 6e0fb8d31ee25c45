"""The client sees dims, the model sees reshape: RANKS tells how many dimensions arrived here."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            scalar = pb_utils.get_input_tensor_by_name(request, "SCALAR").as_numpy()
            grid = pb_utils.get_input_tensor_by_name(request, "GRID").as_numpy()
            ranks = np.tile(np.array([scalar.ndim, grid.ndim], np.int32), (grid.shape[0], 1))
            total = (grid.reshape(grid.shape[0], -1).sum(axis=1) + scalar.reshape(-1)).astype(
                np.int32
            )
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("RANKS", ranks), pb_utils.Tensor("SUM", total)]
                )
            )
        return responses
