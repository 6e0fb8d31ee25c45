"""`async def execute`: while one request waits at its gate, others are taken. TOGETHER tells how
many are inside."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


def wait_at(path):
    with open(path, "rb") as fifo:
        fifo.read()


class TritonPythonModel:
    def initialize(self, args):
        self.inside = 0

    async def execute(self, requests):
        self.inside += len(requests)
        responses = []
        for request in requests:
            path = pb_utils.get_input_tensor_by_name(request, "GO").as_numpy()[0]
            if path:
                await asyncio.get_running_loop().run_in_executor(None, wait_at, path)
            together = np.array([self.inside], np.int32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("TOGETHER", together)]))
        self.inside -= len(requests)
        return responses
