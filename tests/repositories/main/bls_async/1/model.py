"""Business logic scripting from `async def execute`: two calls to add_sub at once, awaited
together."""

import asyncio

import triton_python_backend_utils as pb_utils


def add_sub(left, right, output):
    return pb_utils.InferenceRequest(
        model_name="add_sub",
        requested_output_names=[output],
        inputs=[pb_utils.Tensor("INPUT0", left), pb_utils.Tensor("INPUT1", right)],
    )


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            total, difference = await asyncio.gather(
                add_sub(x, 2 * x, "OUTPUT0").async_exec(), add_sub(x, 2 * x, "OUTPUT1").async_exec()
            )
            result = (
                pb_utils.get_output_tensor_by_name(total, "OUTPUT0").as_numpy()
                * pb_utils.get_output_tensor_by_name(difference, "OUTPUT1").as_numpy()
            )
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", result)]))
        return responses
