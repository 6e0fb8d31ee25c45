"""The response cache: what it keeps, under which key, and what any kind of it can do.

The key covers all that a model's answer may depend on: model, version, inputs with their shapes,
parameters. An answer serves whoever asks for the same outputs or for some of them. (Triton's key
covers names and bytes of the inputs only, and it hands out whatever outputs the first request had
asked for.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from naiad.core.model_spec import ModelSpec
from naiad.core.request import InferRequest, ParameterValue
from naiad.core.response import InferResponse
from naiad.core.tensor import Tensor

Key: TypeAlias = bytes


class CachedResponse(msgspec.Struct, array_like=True, frozen=True):
    outputs: list[Tensor]
    """Their data is of our own, and never written to."""
    parameters: dict[str, ParameterValue]
    asked: list[str] = []
    """Names of the outputs that were asked for; the model may have left some out."""

    def pick(self, wanted: list[str]) -> list[Tensor] | None:
        """These outputs, in this order; None when it was not made for all of them."""
        if not set(wanted) <= set(self.asked):
            return None
        by_name = {tensor.name: tensor for tensor in self.outputs}
        return [by_name[name] for name in wanted if name in by_name]

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return 200 + sum(len(tensor.data) + len(tensor.name) + 100 for tensor in self.outputs)


class ResponseCache(Protocol):
    def look_up(self, key: Key, on_found: Callable[[CachedResponse | None], None]) -> None:
        """Calls back exactly once, perhaps before it returns. A cache that cannot answer says
        None."""
        ...

    def insert(self, key: Key, response: CachedResponse) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def cache_key(request: InferRequest, spec: ModelSpec) -> Key:
    digest = hashlib.sha256()
    parts = [spec.name, str(spec.version)]
    parts += [f"{name}={value!r}" for name, value in sorted(request.parameters.items())]
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        parts += [tensor.name, tensor.datatype, str(tensor.shape), str(len(tensor.data))]
    digest.update("\0".join(f"{len(part)}:{part}" for part in parts).encode())
    for tensor in sorted(request.inputs, key=lambda tensor: tensor.name):
        digest.update(tensor.data)
    return digest.digest()


def keep(response: InferResponse, asked: list[str]) -> CachedResponse:
    """A copy: what the response itself refers to belongs to a worker, and may be written to
    downstream."""
    outputs = [
        Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
        for tensor in response.outputs
    ]
    return CachedResponse(outputs, response.parameters, asked)
