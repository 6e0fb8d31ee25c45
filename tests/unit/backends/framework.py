"""Runs a framework backend without a server: loads a folder, executes requests, returns arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from naiad.core.tensor import Tensor, tensor_from_numpy
from naiad.ipc.work import LoadArguments, WorkRequest, WorkResponse
from tests.unit.backends.fake_runtime import FakeRuntime


def tensor(name: str, data_type: str, dims: list[int], **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims, **more}


def parameters(**values: str) -> dict[str, dict[str, str]]:
    return {name: {"string_value": value} for name, value in values.items()}


class Loaded:
    def __init__(self, backend: Any, config: dict[str, Any], runtime: FakeRuntime) -> None:
        self.backend = backend
        self.config = config
        self.runtime = runtime

    def execute(self, *requests: WorkRequest) -> list[WorkResponse]:
        responses = self.backend.execute(list(requests))
        assert all(response is not None for response in responses)
        return list(responses)

    def infer(
        self, outputs: list[str] | None = None, **inputs: Any
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Runs one request, which must succeed."""
        (response,) = self.execute(request(outputs, **inputs))
        assert response.error is None, response.error
        return arrays(response)


def arguments(
    model_dir: Path,
    config: dict[str, Any],
    file: str = "",
    backend_config: dict[str, str] | None = None,
) -> LoadArguments:
    name = model_dir.name
    return LoadArguments(
        name,
        1,
        str(model_dir),
        f"{name}_0",
        "CPU",
        0,
        json.dumps({"name": name, **config}).encode(),
        file,
        backend_config or {},
    )


def load(
    backend_class: Any,
    model_dir: Path,
    config: dict[str, Any] | None = None,
    file: str = "",
    backend_config: dict[str, str] | None = None,
) -> Loaded:
    """Completes the config and loads the model, as the server does."""
    backend, runtime = backend_class(), FakeRuntime()
    config = dict(config or {})
    config |= msgspec.json.decode(
        backend.complete_config(arguments(model_dir, config, file, backend_config))
    )
    backend.load(arguments(model_dir, config, file, backend_config), runtime)
    return Loaded(backend, config, runtime)


def request(outputs: list[str] | None = None, **inputs: Any) -> WorkRequest:
    return WorkRequest(
        1, "", [_tensor(name, value) for name, value in inputs.items()], outputs or []
    )


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    made = tensor_from_numpy(name, np.asarray(value))
    # The memory is writable, like that of the server.
    made.data = bytearray(made.data)
    return made


def bf16(name: str, shape: list[int], bits: list[int]) -> Tensor:
    return Tensor(name, "BF16", shape, bytearray(np.array(bits, np.uint16).tobytes()))


def arrays(response: WorkResponse) -> dict[str, np.ndarray[Any, Any]]:
    return {output.name: output.as_numpy() for output in response.outputs}
