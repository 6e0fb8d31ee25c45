import asyncio
import os

from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


async def main():
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=1))
    base = f"http://{os.environ['NAIAD_HTTP']}"
    assert await client.is_server_live(base) is True
    assert await client.is_server_ready(base) is True
    assert await client.is_model_ready(base, "add_sub") is True
    inputs = [
        InferInput(name, [1, 4], "FP32", [1.0, 2.0, 3.0, 4.0]) for name in ("INPUT0", "INPUT1")
    ]
    request = InferRequest(model_name="add_sub", infer_inputs=inputs)
    response = await client.infer(base, request, model_name="add_sub")
    outputs = {output.name: output.data for output in response.outputs}
    assert outputs["OUTPUT0"] == [2.0, 4.0, 6.0, 8.0], outputs


asyncio.run(main())
