"""Python models from source text, and batches for them."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from naiad.backends.python.backend import PythonBackend
from naiad.core.tensor import tensor_from_numpy
from naiad.ipc.work import (
    LoadArguments,
    WorkRequest,
    WorkResponse,
    WorkTensor,
)
from tests.unit.backends.fake_runtime import FakeRuntime

PREFIX = "Failed to process the request(s) for model 'm_0', message: "
HEADER = "import numpy as np\nimport triton_python_backend_utils as pb_utils\n"


def config(**more: Any) -> dict[str, Any]:
    inputs = [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}]
    outputs = [
        {"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]},
        {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [-1]},
    ]
    return {
        "name": "m",
        "backend": "python",
        "max_batch_size": 0,
        "input": inputs,
        "output": outputs,
        **more,
    }


def write_model(tmp_path: Path, source: str, **more: Any) -> LoadArguments:
    directory = tmp_path / "m" / "1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.py").write_text(HEADER + textwrap.dedent(source))
    return LoadArguments(
        "m", 1, str(tmp_path / "m"), "m_0", "CPU", 0, json.dumps(config(**more)).encode()
    )


def load(tmp_path: Path, source: str, runtime: FakeRuntime, **more: Any) -> PythonBackend:
    backend = PythonBackend()
    backend.load(write_model(tmp_path, source, **more), runtime)
    return backend


def executing(body: str) -> str:
    """Returns a model whose `execute` is `body`.

    The body may use `requests`, and `self.x`, which is X of the first request.
    """
    head = "class TritonPythonModel:\n    def execute(self, requests):\n"
    head += "        self.x = pb_utils.get_input_tensor_by_name(requests[0], 'X').as_numpy()\n"
    return head + textwrap.indent(textwrap.dedent(body), " " * 8)


def request(handle: int = 1, x: Any = (1.0, 2.0), **more: Any) -> WorkRequest:
    tensor = tensor_from_numpy("X", np.array(x, np.float32))
    # The memory is writable, like that of the channel.
    return WorkRequest(
        handle,
        more.pop("id", ""),
        [WorkTensor(tensor.name, tensor.datatype, tensor.shape, bytearray(tensor.data))],
        **more,
    )


def run(backend: PythonBackend, *requests: WorkRequest) -> list[WorkResponse | None]:
    responses = backend.execute(list(requests or [request()]))
    if isinstance(responses, list):
        return responses

    async def wait() -> list[WorkResponse | None]:
        return await responses

    return asyncio.run(wait())


def error_of(response: WorkResponse | None) -> str:
    assert response is not None
    assert response.error is not None
    assert response.outputs == []
    return response.error.message
