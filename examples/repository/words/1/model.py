"""Sends the words of a text one after the other, as a language model sends its tokens, and stops
when the client has gone."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            words = (
                pb_utils.get_input_tensor_by_name(request, "text_input")
                .as_numpy()[0]
                .decode()
                .split()
            )
            limit = pb_utils.get_input_tensor_by_name(request, "max_words")
            for word in words if limit is None else words[: int(limit.as_numpy()[0])]:
                if sender.is_cancelled():
                    break
                output = pb_utils.Tensor("text_output", np.array([word], dtype=np.object_))
                sender.send(pb_utils.InferenceResponse([output]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
