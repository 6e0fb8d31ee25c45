"""Text in, text out, for /generate. There is no config.pbtxt: the model declares its inputs and
outputs itself."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(8)
        auto_complete_model_config.add_input(
            {"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]}
        )
        auto_complete_model_config.add_output(
            {"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]}
        )
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            loud = np.array(
                [text.decode().upper() for text in texts.ravel()], dtype=np.object_
            ).reshape(texts.shape)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", loud)]))
        return responses
