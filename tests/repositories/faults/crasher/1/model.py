"""Answers with its process id, unless HOW asks it to die or to stand still.

`exit`, `kill`, `segv`, `abort` and `stop` do what they say; `gate:PATH` waits until the FIFO at
PATH is opened and closed.
"""

import ctypes
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


def act(how):
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "system exit":
        raise SystemExit(3)
    if how == "keyboard interrupt":
        raise KeyboardInterrupt
    if how == "close stdout":
        os.close(1)
        os.close(2)
    if how.startswith("gate:"):
        with open(how[5:], "rb") as fifo:
            fifo.read()


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            words = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()
            for word in words.ravel():
                act(word.decode())
            pids = np.full((len(words), 1), os.getpid(), np.int64)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("PID", pids)]))
        return responses
