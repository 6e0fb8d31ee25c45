"""Strings in, the same strings out; batched. The config names no model and no instance group: both
are filled in."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "SAME", pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
                    )
                ]
            )
            for request in requests
        ]
