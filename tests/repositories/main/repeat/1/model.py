"""Decoupled: COUNT responses (zero too), in ways chosen by request parameters.

thread: answer from a thread after execute has returned; fail_at: that response is an error, the
rest follow; flag_with_last: the final flag travels with the last response instead of alone.
"""

import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(index, fail_at):
    if index == fail_at:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"response {index} fails"))
    squares = np.arange(index, dtype=np.int32) ** 2
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("INDEX", np.array([index], np.int32)), pb_utils.Tensor("SQUARES", squares)]
    )


def answer(sender, count, parameters):
    with_last = parameters.get("flag_with_last", False) and count > 0
    for index in range(count):
        is_last = with_last and index == count - 1
        sender.send(response(index, parameters.get("fail_at", -1)), flags=FINAL if is_last else 0)
    if not with_last:
        sender.send(flags=FINAL)


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])
            parameters = json.loads(request.parameters() or "{}")
            arguments = (request.get_response_sender(), count, parameters)
            if parameters.get("thread", False):
                self.threads.append(threading.Thread(target=answer, args=arguments))
                self.threads[-1].start()
            else:
                answer(*arguments)

    def finalize(self):
        for thread in self.threads:
            thread.join()
