"""Works until its request is cancelled, and says so by closing the FIFO that BEGUN names, which it
opened at the start."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            path = pb_utils.get_input_tensor_by_name(request, "BEGUN").as_numpy()[0]
            with open(path, "wb", buffering=0) as fifo:
                fifo.write(b"begun")
                while not request.is_cancelled():
                    time.sleep(0.001)
                fifo.write(b" cancelled")
            error = pb_utils.TritonError("was cancelled", pb_utils.TritonError.CANCELLED)
            responses.append(pb_utils.InferenceResponse(error=error))
        return responses
