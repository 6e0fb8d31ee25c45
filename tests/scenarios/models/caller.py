"""Models that call other models according to a script:

    {"call": model, "how": exec | iterate | first | thread | control, "x": number, "script": script}

A call has either "x" or "script". The result is JSON: the outputs, or {"error": message}. A script
that calls no model is its own result.
"""

import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


def script_of(request):
    return json.loads(pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().ravel()[0])


def response_of(result):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("RESULT", np.array([json.dumps(result)], np.object_))]
    )


def call_of(script):
    if "x" in script:
        inputs = [pb_utils.Tensor("X", np.full((1, 1), script["x"], np.int32))]
        output = "Y"
    else:
        inputs = [
            pb_utils.Tensor(
                "SCRIPT", np.array([json.dumps(script.get("script", "done"))], np.object_)
            )
        ]
        output = "RESULT"
    return pb_utils.InferenceRequest(
        model_name=script["call"],
        model_version=script.get("version", -1),
        requested_output_names=[script.get("output", output)],
        inputs=inputs,
        request_id="inner",
        correlation_id=script.get("sequence", 0),
        flags=script.get("flags", 0),
    )


def read(response):
    if response.has_error():
        return {"error": response.error().message(), "code": response.error().code()}
    values = [
        value
        for tensor in response.output_tensors()
        for value in tensor.as_numpy().ravel().tolist()
    ]
    return json.loads(values[0]) if values and isinstance(values[0], bytes) else values


def run(script):
    if not isinstance(script, dict) or "call" not in script:
        return script
    how = script.get("how", "exec")
    if how == "control":
        return control(script)
    if how == "iterate":
        return [read(response) for response in call_of(script).exec(decoupled=True)]
    if how == "first":
        responses = call_of(script).exec(decoupled=True)
        result = read(next(iter(responses)))
        responses.cancel()
        return result
    if how == "thread":
        results = []
        thread = threading.Thread(target=lambda: results.append(read(call_of(script).exec())))
        thread.start()
        thread.join()
        return results[0]
    return read(call_of(script).exec())


def control(script):
    model, what = script["call"], script["what"]
    try:
        if what == "load":
            pb_utils.load_model(model_name=model)
        elif what == "unload":
            pb_utils.unload_model(model_name=model)
        return pb_utils.is_model_ready(model_name=model)
    except Exception as error:
        return {"error": str(error)}


class Caller:
    def execute(self, requests):
        return [response_of(run(script_of(request))) for request in requests]


class AsyncCaller:
    async def execute(self, requests):
        return [response_of(await self.run(script_of(request))) for request in requests]

    async def run(self, script):
        if isinstance(script, list):
            return await asyncio.gather(*(self.run(part) for part in script))
        if not isinstance(script, dict) or "call" not in script:
            return script
        if script.get("how") == "iterate":
            return [
                read(response)
                async for response in await call_of(script).async_exec(decoupled=True)
            ]
        return read(await call_of(script).async_exec())


class DecoupledCaller:
    """Sends one response for each call in its script, which is a list, from a thread, and then the
    final flag."""

    def execute(self, requests):
        for request in requests:
            threading.Thread(
                target=self.stream, args=(request.get_response_sender(), script_of(request))
            ).start()

    def stream(self, sender, scripts):
        for script in scripts:
            sender.send(response_of(run(script)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
