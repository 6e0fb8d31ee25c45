"""No config.pbtxt at all: a static auto_complete_config declares inputs, outputs, batching."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.set_max_batch_size(4)
        auto_complete_model_config.add_input({"name": "X", "data_type": "TYPE_FP64", "dims": [2]})
        auto_complete_model_config.add_input(
            {"name": "SCALE", "data_type": "TYPE_FP64", "dims": [1], "optional": True}
        )
        auto_complete_model_config.add_output({"name": "Y", "data_type": "TYPE_FP64", "dims": [2]})
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            result = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            scale = pb_utils.get_input_tensor_by_name(request, "SCALE")
            if scale is not None:
                result = result * scale.as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", result)]))
        return responses
