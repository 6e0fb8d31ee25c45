"""A plain model that answers through response senders. What a wrong use raises is told to the
client by the good answer."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(words):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(words, dtype=np.object_))])


def caught(action):
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing raised"]


MISUSES = {
    "unknown flag": lambda sender: sender.send(response(["x"]), flags=7),
    "nothing": lambda sender: sender.send(),
    "final first": lambda sender: sender.send(flags=FINAL),
}


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            kind = pb_utils.get_input_tensor_by_name(request, "KIND").as_numpy()[0].decode()
            sender = request.get_response_sender()
            if kind in MISUSES:
                words = caught(lambda kind=kind, sender=sender: MISUSES[kind](sender))
                sender.send(response(words), flags=FINAL)
            elif kind == "flag alone":
                sender.send(response(["answered"]))
                sender.send(flags=FINAL)
            else:
                sender.send(response([kind]), flags=FINAL)
        return [None] * len(requests)
