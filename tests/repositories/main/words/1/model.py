"""Decoupled text: one response per word of text_input. The words "!" and "!!" answer with an error
instead."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(position, word):
    if word == "!":
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("not a word: !"))
    if word == "!!":
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError("not a word: !!", pb_utils.TritonError.INVALID_ARG)
        )
    text = pb_utils.Tensor("text_output", np.array([word], dtype=np.object_))
    return pb_utils.InferenceResponse(
        [text, pb_utils.Tensor("position", np.array([position], np.int32))]
    )


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
            limit = pb_utils.get_input_tensor_by_name(request, "max_words")
            found = text.split()
            for position, word in enumerate(
                found if limit is None else found[: int(limit.as_numpy()[0])]
            ):
                sender.send(response(position, word))
            sender.send(flags=FINAL)
