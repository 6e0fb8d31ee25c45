"""No config.pbtxt: a classmethod declares a decoupled model and reads a file of the model's folder
while doing so."""

import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    greeting = "hello"

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config):
        with open(os.path.join(pb_utils.get_model_dir(), "outputs.txt")) as outputs:
            names = outputs.read().split()
        auto_complete_model_config.set_max_batch_size(0)
        auto_complete_model_config.add_input(
            {"name": "NAME", "data_type": "TYPE_STRING", "dims": [1]}
        )
        for name in names:
            auto_complete_model_config.add_output(
                {"name": name, "data_type": "TYPE_STRING", "dims": [1]}
            )
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        return auto_complete_model_config

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            name = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()[0].decode()
            words = np.array([f"{self.greeting} {name}"], dtype=np.object_)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", words)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
