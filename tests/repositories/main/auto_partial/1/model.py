"""config.pbtxt names the input, the model adds the output; a string parameter of the config is read
at start."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(2)
        auto_complete_model_config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        auto_complete_model_config.add_output({"name": "Y", "data_type": "TYPE_INT32", "dims": [1]})
        return auto_complete_model_config

    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.offset = np.int32(parameters["offset"]["string_value"])

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "Y",
                        pb_utils.get_input_tensor_by_name(request, "X").as_numpy() + self.offset,
                    )
                ]
            )
            for request in requests
        ]
