"""A FastAPI app around an onnxruntime session. uvicorn runs it in the environment of the peers.

Environment variables set the path and the threads of the model. The handler is a plain `def`, which
FastAPI runs in a thread; onnxruntime releases the interpreter lock.
"""

import os

import numpy as np
import onnxruntime
from fastapi import FastAPI
from fastapi.responses import ORJSONResponse
from pydantic import BaseModel

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
session = onnxruntime.InferenceSession(
    os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
)
types = {
    node.name: np.float32 if node.type == "tensor(float)" else np.int64
    for node in session.get_inputs()
}
app = FastAPI(default_response_class=ORJSONResponse)


class Tensors(BaseModel):
    inputs: dict[str, list]


@app.post("/infer")
def infer(request: Tensors):
    outputs = session.run(
        None, {name: np.asarray(value, types[name]) for name, value in request.inputs.items()}
    )
    return {
        "outputs": {
            node.name: value.tolist()
            for node, value in zip(session.get_outputs(), outputs, strict=True)
        }
    }
