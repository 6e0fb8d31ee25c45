"""Calls the three steps concurrently and returns the sum of their outputs as Y. The requests of a
batch also run concurrently."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*(self.respond(request) for request in requests))

    async def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
        calls = [
            pb_utils.InferenceRequest(
                model_name=step, inputs=[pb_utils.Tensor("X", x)], requested_output_names=["Y"]
            ).async_exec()
            for step in ("step_1", "step_2", "step_3")
        ]
        total = 0
        for response in await asyncio.gather(*calls):
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
            total = total + pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", total)])
